// One group: how far behind it is, since when, who reads what, and why it rebalanced; of a queue also what is in flight.

import * as api from "../api.js";
import { Chart } from "../chart.js";
import { fill, h } from "../dom.js";
import { compact, count, plural } from "../format.js";
import { keepFresh } from "../live.js";
import { card, emptyState, pageHead, problem, segmented, stateBadge } from "../parts.js";
import { href } from "../router.js";
import { DataTable, loadFrom } from "../table.js";
import { DELIVERIES_HINT } from "./groups.js";
import { rebalanceTable } from "./rebalances.js";

const MINUTE_MS = 60_000;
const RANGES = [[5 * MINUTE_MS, "5 min"], [15 * MINUTE_MS, "15 min"], [60 * MINUTE_MS, "1 h"]];

export function groupView({ parts, signal }) {
  const [, id] = parts;
  let info = { members: [], offsets: [], shares: [], is_queue: false };
  const figures = h("div", { class: "figures" });
  const trouble = h("div", { class: "trouble" });
  const chart = lagChart(id, signal);
  const offsets = offsetTable(id, () => info, signal);
  const shares = shareTable(id, () => info, signal);
  const [byOffset, byShare] = [card("Lag by partition", offsets.element), card("Jobs by partition", shares.element)];
  byShare.hidden = true;
  const members = memberTable(id, () => info, signal);
  const refresh = async () => {
    try {
      info = await api.group(id, signal);
    } catch (error) {
      if (error.name !== "AbortError") fill(trouble, problem(error, refresh));
      return;
    }
    fill(trouble);
    fill(figures, figureList(info));
    chart.add(Date.now(), info.lag);
    byShare.hidden = !info.is_queue;
    byOffset.hidden = info.is_queue;
    await Promise.all([offsets.refresh(), shares.refresh(), members.refresh()]);
  };
  keepFresh(refresh, ["groups", "topics"], signal, 2000);
  return h("div", { class: "view" }, pageHead(id, { trail: [["Groups", href(["groups"])]] }), figures, trouble, chart.element,
    byOffset, byShare, card("Members", members.element), card("Rebalances", rebalanceTable(signal, id)));
}

function figureList(info) {
  const figure = (label, value) => h("div", null, h("dt", null, label), h("dd", null, value));
  return h("dl", null, figure("State", stateBadge(info.state)), figure("Lag", h("span", { class: "big", data: { lag: info.lag ?? "" } }, count(info.lag))),
    figure("Members", count(info.members.length)), info.is_queue && figure("In flight", h("span", { data: { inFlight: info.in_flight ?? "" } }, count(info.in_flight))),
    figure("Partitions", count(info.is_queue ? info.shares.length : info.offsets.length)), figure("Assignor", info.protocol || "–"), figure("Coordinator", `broker ${info.coordinator ?? "–"}`));
}

function lagChart(id, signal) {
  let rangeMs = RANGES[1][0];
  let points = [];
  const chart = new Chart({ label: "Lag", format: compact, exact: count, isWhole: true, series: [{ name: "records behind", tone: "a" }], rangeMs, signal });
  const draw = () => chart.show(points, rangeMs);
  const load = async () => {
    try {
      const kept = (await api.groupLag(id, signal)).points;
      const last = kept.at(-1)?.[0] ?? 0;
      points = [...kept, ...points.filter(([ms]) => ms > last)];
      draw();
    } catch (error) {
      // The head of the page tells what is wrong; the chart keeps what it has.
      if (!(error instanceof api.ApiProblem) && error.name !== "AbortError") throw error;
    }
  };
  keepFresh(load, [], signal);
  const range = segmented("Time shown", RANGES, rangeMs, (value) => {
    rangeMs = value;
    draw();
  });
  return {
    element: card(["Lag over time", range], chart.element),
    add(ms, lag) {
      if (lag === null || lag === undefined || ms <= (points.at(-1)?.[0] ?? 0)) return;
      points.push([ms, lag]);
      draw();
    },
  };
}

function lagCell(lag, most) {
  const bar = h("span", { class: "bar" }, h("span"));
  bar.firstChild.style.width = `${most > 0 ? Math.max(lag > 0 ? 3 : 0, (100 * (lag ?? 0)) / most) : 0}%`;
  return h("span", { class: "lag-cell" }, bar, h("b", null, count(lag)));
}

function offsetTable(id, info, signal) {
  const rows = () => {
    const { offsets, members } = info();
    const most = Math.max(0, ...offsets.map(({ lag }) => lag ?? 0));
    const clients = new Map(members.map(({ member_id: member, client_id: client }) => [member, client]));
    // Offsets and ends are asked for one after the other; what is committed was there, whenever the end was looked at.
    return offsets.map((row) => ({ ...row, end: Math.max(row.end ?? 0, row.committed), most, client: clients.get(row.member_id) ?? "" }));
  };
  return new DataTable({
    label: `Lag of ${id} by partition`, noun: "partition", signal, sort: "-lag", load: loadFrom(rows),
    columns: [
      { id: "topic", label: "Topic", isSortable: true, cell: ({ topic }) => h("a", { href: href(["topics", topic]) }, topic) },
      { id: "partition", label: "Partition", isNumber: true, isSortable: true, width: "w-s", cell: (row) => count(row.partition) },
      { id: "committed", isMinor: true, label: "Committed", isNumber: true, isSortable: true, width: "w-m", cell: (row) => count(row.committed) },
      { id: "end", isMinor: true, label: "End", isNumber: true, isSortable: true, width: "w-m", cell: (row) => count(row.end) },
      { id: "lag", label: "Lag", isNumber: true, isSortable: true, width: "w-xl", cell: (row) => lagCell(row.lag, row.most) },
      { id: "client", isMinor: true, label: "Read by", isSortable: true, cell: (row) => h("span", { title: row.member_id }, row.client || "nobody") },
    ],
    empty: () => emptyState("The group has no committed offsets.", "Lag is known once a consumer has committed."),
  });
}

function shareTable(id, info, signal) {
  const rows = () => {
    const most = Math.max(0, ...info().shares.map(({ lag }) => lag ?? 0));
    return info().shares.map((row) => ({ ...row, most }));
  };
  return new DataTable({
    label: `Jobs of ${id} by partition`, noun: "partition", signal, sort: "-lag", load: loadFrom(rows),
    columns: [
      { id: "topic", label: "Topic", isSortable: true, cell: ({ topic }) => h("a", { href: href(["topics", topic]) }, topic) },
      { id: "partition", label: "Partition", isNumber: true, isSortable: true, width: "w-s", cell: (row) => count(row.partition) },
      { id: "start", isMinor: true, label: "Start", isNumber: true, isSortable: true, width: "w-m", hint: "Everything before this offset is done", cell: (row) => count(row.start) },
      { id: "lag", label: "Lag", isNumber: true, isSortable: true, width: "w-xl", cell: (row) => lagCell(row.lag, row.most) },
      { id: "members", isMinor: true, label: "Members", isNumber: true, isSortable: true, width: "w-s", cell: (row) => count(row.members) },
      { id: "in_flight", label: "In flight", isNumber: true, isSortable: true, width: "w-m", hint: "Records that members hold under a lock", cell: (row) => count(row.in_flight) },
      { id: "waiting", isMinor: true, label: "Waiting", isNumber: true, isSortable: true, width: "w-m", hint: "Records that came back and will be delivered again", cell: (row) => count(row.waiting) },
      { id: "deliveries", isMinor: true, label: "Deliveries", width: "w-l", hint: DELIVERIES_HINT, cell: ({ deliveries }) => deliveries || "–" },
    ],
    empty: () => emptyState("The queue has no partitions yet.", "They are there a moment after its first member has joined."),
  });
}

function assigned(partitions) {
  const list = Array.isArray(partitions) ? partitions : [];
  const byTopic = new Map();
  for (const item of list) {
    const [topic, partition] = typeof item === "object" ? [item.topic, item.partition] : [String(item), null];
    byTopic.set(topic, [...(byTopic.get(topic) ?? []), partition]);
  }
  return [...byTopic].map(([topic, numbers]) => `${topic} ${numbers.filter((number) => number !== null).join(", ")}`.trim()).join(" · ");
}

function memberTable(id, info, signal) {
  const rows = () => info().members.map((member) => ({ ...member, assigned: assigned(member.partitions), number: member.partitions?.length ?? 0 }));
  return new DataTable({
    label: `Members of ${id}`, noun: "member", signal, sort: "client_id", load: loadFrom(rows),
    columns: [
      { id: "client_id", label: "Client", isSortable: true, cell: (row) => h("span", { title: row.member_id }, row.client_id) },
      { id: "instance_id", isMinor: true, label: "Instance", width: "w-l", hint: "group.instance.id of a static member", cell: (row) => row.instance_id ?? "–" },
      { id: "host", label: "Host", isSortable: true, width: "w-l", cell: ({ host }) => h("code", null, String(host ?? "–").replace(/^\//, "")) },
      { id: "assigned", label: "Reads", cell: (row) => h("span", { title: row.assigned }, row.number === 0 ? "nothing" : row.number > 12 ? plural(row.number, "partition") : row.assigned) },
    ],
    empty: () => emptyState("Nobody reads.", "The group keeps its offsets; a consumer that joins goes on from there."),
  });
}
