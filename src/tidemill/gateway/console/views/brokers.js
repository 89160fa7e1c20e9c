// The brokers and what each of them carries.

import * as api from "../api.js";
import { bytes, count } from "../format.js";
import { keepFresh } from "../live.js";
import { badge, emptyState, pageHead, searchBox } from "../parts.js";
import { h } from "../dom.js";
import { note } from "../router.js";
import { DataTable, searchInto } from "../table.js";

export function brokersView({ query, signal }) {
  const place = { q: query.get("q") ?? "", sort: query.get("sort") ?? "id" };
  const remember = () => note(["brokers"], place);
  const table = new DataTable({
    label: "Brokers", noun: "broker", signal, sort: place.sort, query: place.q,
    columns: [
      { id: "id", label: "Broker", isSortable: true, width: "w-xl", cell: (row) => [h("b", null, String(row.id)), row.is_controller && [" ", badge("controller", "info")], row.is_up === false && [" ", badge(row.state === "silent" ? "no answer" : "down", "bad")]] },
      { id: "host", label: "Address", isSortable: true, cell: (row) => h("code", null, `${row.host}:${row.port}`) },
      { id: "rack", isMinor: true, label: "Rack", isSortable: true, width: "w-l", cell: ({ rack }) => rack ?? "–" },
      { id: "leaders", label: "Leads", isNumber: true, isSortable: true, width: "w-m", hint: "Partitions that this broker leads", cell: ({ leaders }) => count(leaders) },
      { id: "replicas", isMinor: true, label: "Replicas", isNumber: true, isSortable: true, width: "w-m", cell: ({ replicas }) => count(replicas) },
      { id: "out_of_sync", isMinor: true, label: "Out of sync", isNumber: true, isSortable: true, width: "w-m", hint: "Replicas here that are not in their partition's ISR", cell: (row) => (row.out_of_sync > 0 ? badge(count(row.out_of_sync), "warn") : "0") },
      { id: "bytes", label: "Stored", isNumber: true, isSortable: true, width: "w-m", cell: (row) => bytes(row.bytes) },
    ],
    load: (page) => api.brokers(page, signal),
    changed: ({ sort }) => {
      place.sort = sort;
      remember();
    },
    empty: (text) => (text ? emptyState(`No broker matches “${text}”.`) : emptyState("No broker answers.", "Is the cluster running? tidemill doctor finds out what is wrong.")),
  });
  const search = searchBox("Search brokers", place.q, (text) => {
    place.q = text;
    remember();
    table.search(text);
  });
  keepFresh(() => table.refresh(), ["topics"], signal);
  return h("div", { class: "view" }, pageHead("Brokers"), h("div", { class: "toolbar" }, searchInto(search, table)), table.element);
}
