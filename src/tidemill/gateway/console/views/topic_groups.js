// The groups that have committed offsets in this topic.

import * as api from "../api.js";
import { h } from "../dom.js";
import { emptyState } from "../parts.js";
import { go } from "../router.js";
import { DataTable, loadFrom } from "../table.js";
import { GROUP_COLUMNS } from "./groups.js";

const GROUPS_MAX = 100;

export function topicGroupsTab({ name, topic, signal }) {
  let rows = [];
  const table = new DataTable({
    label: `Groups of ${name}`, noun: "group", signal, columns: GROUP_COLUMNS, sort: "group_id", load: loadFrom(() => rows, ["group_id"]),
    open: ({ group_id: id }) => go(["groups", id]),
    empty: () => emptyState("No group has committed offsets here.", "A consumer group appears when it has read and committed for the first time."),
  });
  topic.addEventListener("info", async () => {
    const names = (topic.info?.groups ?? []).slice(0, GROUPS_MAX);
    const answers = await Promise.allSettled(names.map((id) => api.group(id, signal)));
    rows = answers.filter(({ status }) => status === "fulfilled").map(({ value }) => ({ ...value, members: value.members.length }));
    table.refresh();
  });
  return h("div", { class: "tab" }, table.element);
}
