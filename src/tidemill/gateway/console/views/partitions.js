// A topic's partitions: leader, replicas, ISR, offsets, sizes. Ten thousand are as quick as ten: only rows in sight are asked for.

import * as api from "../api.js";
import { h } from "../dom.js";
import { bytes, count } from "../format.js";
import { emptyState, segmented, stateBadge } from "../parts.js";
import { href, note } from "../router.js";
import { DataTable } from "../table.js";

const STATES = [["", "All"], ["ok", "OK"], ["under_replicated", "Under-replicated"], ["offline", "Offline"]];

function replicaList({ replicas, isr, leader }) {
  return h("span", { class: "replicas" }, replicas.map((id) => {
    const isInSync = isr.includes(id);
    const role = id === leader ? "leader" : isInSync ? "in sync" : "out of sync";
    return h("span", { class: `replica ${id === leader ? "leads" : isInSync ? "" : "behind"}`, title: `broker ${id}: ${role}` }, String(id));
  }));
}

export function partitionsTab({ name, topic, query, signal }) {
  const place = { state: query.get("state") ?? "", sort: query.get("sort") ?? "partition" };
  const remember = () => note(["topics", name, "partitions"], place);
  const columns = [
    { id: "partition", label: "Partition", isNumber: true, isSortable: true, width: "w-s", cell: (row) => h("a", { href: href(["topics", name, "messages"], { partition: row.partition }) }, count(row.partition)) },
    { id: "state", label: "State", isSortable: true, width: "w-l", cell: ({ state }) => stateBadge(state) },
    { id: "leader", label: "Leader", isNumber: true, isSortable: true, width: "w-s", cell: ({ leader }) => (leader === null || leader < 0 ? "none" : String(leader)) },
    { id: "leader_epoch", isMinor: true, label: "Epoch", isNumber: true, width: "w-s", hint: "How often the leadership was given anew", cell: (row) => count(row.leader_epoch) },
    { id: "replicas", isMinor: true, label: "Replicas", hint: "The leader is filled, those out of sync are struck through", cell: replicaList },
    { id: "isr", isMinor: true, label: "ISR", cell: ({ isr }) => h("code", null, isr.join(", ")), width: "w-m" },
    { id: "start_offset", isMinor: true, label: "Start", isNumber: true, isSortable: true, width: "w-m", cell: (row) => count(row.start_offset) },
    { id: "end_offset", label: "End", isNumber: true, isSortable: true, width: "w-m", cell: (row) => count(row.end_offset) },
    { id: "bytes", label: "Stored", isNumber: true, isSortable: true, width: "w-m", cell: (row) => bytes(row.bytes) },
  ];
  const table = new DataTable({
    label: `Partitions of ${name}`, noun: "partition", signal, columns, sort: place.sort,
    load: (page) => api.partitions(name, { ...page, query: null, state: place.state }, signal),
    open: ({ partition }) => (location.hash = href(["topics", name, "messages"], { partition })),
    changed: ({ sort }) => {
      place.sort = sort;
      remember();
    },
    empty: () => emptyState(place.state ? "No partition is in this state." : "No partitions."),
  });
  const filter = segmented("State", STATES, place.state, (state) => {
    place.state = state;
    remember();
    table.reload();
  });
  topic.addEventListener("info", () => table.refresh());
  table.refresh();
  return h("div", { class: "tab" }, h("div", { class: "toolbar" }, filter), table.element);
}
