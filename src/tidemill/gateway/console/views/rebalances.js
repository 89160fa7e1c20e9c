// When groups rebalanced, and why. The brokers tell it at their status listeners, as far as the gateway knows those.

import * as api from "../api.js";
import { h } from "../dom.js";
import { ago, count, nearTime, utc } from "../format.js";
import { keepFresh } from "../live.js";
import { emptyState, pageHead, searchBox } from "../parts.js";
import { href, note } from "../router.js";
import { DataTable, loadFrom, searchInto } from "../table.js";

const LIMIT = 1000;
// Members are named by their client and a random part; the whole name is in the title.
const MEMBER_UUID = /-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g;

function source(signal, groupId) {
  const state = { isKnown: true, rows: [] };
  state.ask = async () => {
    const answer = await api.rebalances({ limit: LIMIT, group: groupId }, signal);
    state.isKnown = answer.is_known !== false;
    // A row is written anew when its text changes: so that "3 s ago" does not stay.
    state.rows = answer.items.map((row) => ({ ...row, ago: ago(row.at_ms) }));
  };
  return state;
}

function tableOf(signal, groupId, query = "") {
  const found = source(signal, groupId);
  const local = loadFrom(() => found.rows, ["group_id", "cause"]);
  const columns = [
    { id: "at_ms", label: "When", width: "w-when", cell: (row) => h("time", { title: utc(row.at_ms) }, nearTime(row.at_ms).replace(/\.\d+$/, ""), h("span", { class: "faint" }, ` · ${row.ago}`)) },
    { id: "group_id", label: "Group", width: "w-l", cell: ({ group_id: id }) => h("a", { href: href(["groups", id]) }, id) },
    { id: "generation", isMinor: true, label: "Generation", isNumber: true, width: "w-m", cell: ({ generation }) => count(generation) },
    { id: "members", label: "Members", isNumber: true, width: "w-m", cell: ({ members, members_before: before }) => `${before === members ? "" : `${count(before)} → `}${count(members)}` },
    { id: "cause", label: "Cause", cell: ({ cause }) => h("span", { title: cause }, String(cause ?? "–").replace(MEMBER_UUID, "")) },
    { id: "broker_id", isMinor: true, label: "Broker", isNumber: true, width: "w-s", cell: (row) => `${row.broker_id ?? "–"}` },
  ].filter(({ id }) => groupId === null || id !== "group_id");
  const table = new DataTable({
    label: groupId === null ? "Rebalances" : `Rebalances of ${groupId}`, noun: "rebalance", signal, columns, query,
    load: async (page) => {
      if (page.offset === 0) await found.ask();
      return local(page);
    },
    empty: () => (found.isKnown
      ? emptyState("No rebalance has happened since the brokers started.")
      : emptyState("The gateway knows no broker's status listener.", ["Start it with ", h("code", null, "--status-url http://HOST:PORT"), " of each broker to see why groups rebalance."])),
  });
  keepFresh(() => table.refresh(), ["groups"], signal);
  return table;
}

/** The rebalances of one group, for its page. */
export function rebalanceTable(signal, groupId) {
  return tableOf(signal, groupId).element;
}

export function rebalancesView({ query, signal }) {
  const table = tableOf(signal, null, query.get("q") ?? "");
  const search = searchBox("Search by group or cause", query.get("q") ?? "", (text) => {
    note(["rebalances"], { q: text });
    table.search(text);
  });
  return h("div", { class: "view" }, pageHead("Rebalances", { subtitle: "Newest first" }), h("div", { class: "toolbar" }, searchInto(search, table)), table.element);
}
