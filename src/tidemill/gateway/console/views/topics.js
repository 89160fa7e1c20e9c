// All topics: search, sort, create.

import * as api from "../api.js";
import { h, icon } from "../dom.js";
import { bytes, count, perSecond } from "../format.js";
import { bind } from "../keys.js";
import { keepFresh } from "../live.js";
import { badge, checkbox, emptyState, pageHead, searchBox } from "../parts.js";
import { go, href, note } from "../router.js";
import { DataTable, searchInto } from "../table.js";
import { createTopicDialog } from "./topic_dialogs.js";

const COLUMNS = [
  { id: "name", label: "Topic", isSortable: true, cell: (row) => [h("a", { href: href(["topics", row.name]), title: row.name }, row.name), row.is_internal && [" ", badge("internal")]] },
  { id: "partitions", isMinor: true, label: "Partitions", isNumber: true, isSortable: true, width: "w-m", cell: (row) => count(row.partitions) },
  { id: "replication_factor", isMinor: true, label: "Replication", isNumber: true, isSortable: true, width: "w-m", cell: (row) => count(row.replication_factor) },
  { id: "records", label: "Records", isNumber: true, isSortable: true, width: "w-m", hint: "Offsets between start and end; compaction and transactions leave gaps", cell: (row) => count(row.records) },
  { id: "records_in_per_s", isMinor: true, label: "Records in", isNumber: true, isSortable: true, width: "w-m", cell: (row) => perSecond(row.records_in_per_s) },
  { id: "bytes", isMinor: true, label: "Stored", isNumber: true, isSortable: true, width: "w-m", cell: (row) => bytes(row.bytes) },
  { id: "under_replicated", label: "Health", isSortable: true, width: "w-health", cell: health },
];

function health(row) {
  if (row.offline > 0) return badge(`${count(row.offline)} offline`, "bad");
  if (row.under_replicated > 0) return badge([`${count(row.under_replicated)} under`, h("span", { class: "roomy" }, "-replicated")], "warn");
  return badge("ok", "good");
}

export function topicsView({ query, signal }) {
  const place = { q: query.get("q") ?? "", sort: query.get("sort") ?? "name", internal: query.get("internal") === "true" };
  const remember = () => note(["topics"], place);
  const create = async () => {
    const name = await createTopicDialog();
    if (name) go(["topics", name, "messages"]);
  };
  const table = new DataTable({
    label: "Topics", noun: "topic", signal, columns: COLUMNS, sort: place.sort, query: place.q,
    load: (page) => api.topics({ ...page, internal: place.internal || null }, signal),
    open: ({ name }) => go(["topics", name]),
    changed: ({ sort }) => {
      place.sort = sort;
      remember();
    },
    empty: (text) => (text
      ? emptyState(`No topic matches “${text}”.`, place.internal ? "" : "Internal topics are listed only when asked for.")
      : emptyState("No topics yet.", h("button", { type: "button", class: "primary", onclick: create }, "Create a topic"), ["or on the command line: ", h("code", null, "tidemill topics create orders")])),
  });
  const search = searchBox("Search topics", place.q, (text) => {
    place.q = text;
    remember();
    table.search(text);
  });
  const internal = checkbox("Internal topics", place.internal, (isOn) => {
    place.internal = isOn;
    remember();
    table.reload();
  });
  bind("c", "Create a topic", create, signal);
  keepFresh(() => table.refresh(), ["topics"], signal);
  const button = h("button", { type: "button", class: "primary", onclick: create, "aria-keyshortcuts": "c" }, icon("plus"), "Create topic");
  return h("div", { class: "view" }, pageHead("Topics", { actions: [button] }), h("div", { class: "toolbar" }, searchInto(search, table), internal), table.element);
}
