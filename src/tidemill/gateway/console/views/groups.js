// All groups with state, members and lag, and of share groups what is in flight.

import * as api from "../api.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { keepFresh } from "../live.js";
import { badge, emptyState, pageHead, searchBox, stateBadge } from "../parts.js";
import { go, href, note } from "../router.js";
import { DataTable, searchInto } from "../table.js";

export const DELIVERIES_HINT = "How often the records in flight were delivered: 1×40 3×2 is forty in their first delivery, two in their third";

export const GROUP_COLUMNS = [
  { id: "group_id", label: "Group", isSortable: true, cell: ({ group_id: id }) => h("a", { href: href(["groups", id]) }, id) },
  { id: "state", label: "State", isSortable: true, width: "w-l", cell: ({ state }) => stateBadge(state) },
  { id: "members", isMinor: true, label: "Members", isNumber: true, isSortable: true, width: "w-m", cell: ({ members }) => count(members) },
  { id: "topics", isMinor: true, label: "Topics", cell: ({ topics }) => (Array.isArray(topics) ? topics.join(", ") : count(topics)) },
  { id: "protocol", isMinor: true, label: "Assignor", width: "w-m", cell: ({ protocol, is_queue: isQueue }) => (isQueue ? badge("queue") : protocol || "–") },
  { id: "in_flight", isMinor: true, label: "In flight", isNumber: true, isSortable: true, width: "w-m", hint: "Records of a queue that its members hold", cell: ({ is_queue: isQueue, in_flight: number, deliveries }) => (isQueue ? h("span", { title: deliveries && `Deliveries: ${deliveries}` }, count(number)) : "") },
  { id: "coordinator", isMinor: true, label: "Coordinator", isNumber: true, isSortable: true, width: "w-m", hint: "The broker that coordinates the group", cell: ({ coordinator }) => (coordinator ?? "–") + "" },
  { id: "lag", label: "Lag", isNumber: true, isSortable: true, width: "w-m", hint: "Records that the group has not yet committed, or of a queue not done, over all partitions", cell: ({ lag }) => h("b", null, count(lag)) },
];

export function groupsView({ query, signal }) {
  const place = { q: query.get("q") ?? "", sort: query.get("sort") ?? "-lag" };
  const remember = () => note(["groups"], place);
  const table = new DataTable({
    label: "Consumer groups", noun: "group", signal, columns: GROUP_COLUMNS, sort: place.sort, query: place.q,
    load: (page) => api.groups(page, signal),
    open: ({ group_id: id }) => go(["groups", id]),
    changed: ({ sort }) => {
      place.sort = sort;
      remember();
    },
    empty: (text) => (text ? emptyState(`No group matches “${text}”.`) : emptyState("No consumer groups yet.", "A group appears here when its first consumer joins, for example:", h("code", null, "tidemill consume orders --group my-group"))),
  });
  const search = searchBox("Search groups", place.q, (text) => {
    place.q = text;
    remember();
    table.search(text);
  });
  keepFresh(() => table.refresh(), ["groups", "topics"], signal);
  return h("div", { class: "view" }, pageHead("Groups"), h("div", { class: "toolbar" }, searchInto(search, table)), table.element);
}
