// Is the cluster well, and what does it do now: problems in words, totals, throughput, the quorum, and where to look next.

import * as api from "../api.js";
import { Chart } from "../chart.js";
import { fill, h, icon } from "../dom.js";
import { ago, bytes, bytesPerSecond, compact, count, perSecond, plural } from "../format.js";
import { keepFresh, live } from "../live.js";
import { badge, card, emptyState, pageHead, problem, segmented, stateBadge, tile } from "../parts.js";
import { href } from "../router.js";
import { DataTable } from "../table.js";

const MINUTE_MS = 60_000;
const RANGES = [[5 * MINUTE_MS, "5 min"], [15 * MINUTE_MS, "15 min"], [60 * MINUTE_MS, "1 h"]];
const TONES = { error: "bad", critical: "bad", warning: "warn", info: "info" };
const TONE_ICONS = { bad: "error", warn: "warn", info: "info" };

export function overviewView({ signal }) {
  const subtitle = h("span", null, " ");
  const health = h("div", { class: "health", role: "status" });
  const tiles = totals();
  const quorum = quorumCard();
  const charts = throughputCharts(signal);
  const show = (overview) => {
    fill(subtitle, "Cluster ", h("code", null, overview.cluster_id ?? "?"), ` · controller ${overview.controller_id ?? "none"}`);
    fill(health, healthLines(overview));
    tiles.show(overview);
    quorum.show(overview.quorum);
    charts.add(overview);
  };
  const load = async () => {
    try {
      show(await api.overview(signal));
    } catch (error) {
      if (error.name !== "AbortError") fill(health, problem(error, load));
    }
  };
  live.on("overview", ({ detail }) => show(detail), signal);
  live.on("resync", load, signal);
  if (live.overview) show(live.overview);
  load();
  return h("div", { class: "view" }, pageHead("Overview", { subtitle, actions: [charts.range] }), health, tiles.element,
    h("div", { class: "columns" }, charts.cards), h("div", { class: "columns" }, busiestTopics(signal), laggingGroups(signal)), quorum.element);
}

function healthLines({ problems = [], totals = {}, quorum }) {
  if (problems.length > 0) {
    return problems.map(({ severity, text }) => {
      const tone = TONES[severity] ?? "warn";
      return h("div", { class: `notice ${tone}` }, icon(TONE_ICONS[tone]), h("p", null, text));
    });
  }
  if (!totals.partitions) {
    return h("div", { class: "notice info" }, icon("info"), h("p", null, h("b", null, "The cluster is ready."), " It has no topics yet."));
  }
  const voters = quorum ? ` ${plural(quorum.voters.length, "voter")} in the quorum.` : "";
  return h("div", { class: "notice good" }, icon("ok"),
    h("p", null, h("b", null, "All is well."), ` Every one of ${plural(totals.partitions, "partition")} has a leader and all its replicas in sync.${voters}`));
}

function totals() {
  const tiles = {
    brokers: tile("Brokers", { href: href(["brokers"]) }), topics: tile("Topics", { href: href(["topics"]) }),
    partitions: tile("Partitions"), under: tile("Under-replicated"), offline: tile("Offline"),
    groups: tile("Groups", { href: href(["groups"]) }), bytes: tile("Stored"),
  };
  return {
    element: h("div", { class: "tiles" }, Object.values(tiles).map(({ element }) => element)),
    show({ totals }) {
      for (const name of ["brokers", "topics", "partitions", "groups"]) tiles[name].show(count(totals[name]));
      tiles.under.show(count(totals.under_replicated), { tone: totals.under_replicated > 0 ? "warn" : "" });
      tiles.offline.show(count(totals.offline), { tone: totals.offline > 0 ? "bad" : "" });
      tiles.bytes.show(bytes(totals.bytes));
    },
  };
}

function throughputCharts(signal) {
  let rangeMs = RANGES[1][0];
  let points = [];
  const records = new Chart({ label: "Records written a second", format: compact, exact: perSecond, series: [{ name: "in", tone: "a" }], signal });
  const traffic = new Chart({
    label: "Bytes a second", format: bytesPerSecond, isBytes: true, series: [{ name: "in", tone: "a" }, { name: "out", tone: "b" }], signal,
  });
  const draw = () => {
    records.show(points.map(([ms, recordsIn]) => [ms, recordsIn]), rangeMs);
    traffic.show(points.map(([ms, , bytesIn, bytesOut]) => [ms, bytesIn, bytesOut]), rangeMs);
  };
  const load = async () => {
    try {
      const kept = (await api.throughput(signal)).points;
      const last = kept.at(-1)?.[0] ?? 0;
      points = [...kept, ...points.filter(([ms]) => ms > last)];
      draw();
    } catch (error) {
      // The health line above tells what is wrong; the chart keeps what it has.
      if (!(error instanceof api.ApiProblem) && error.name !== "AbortError") throw error;
    }
  };
  keepFresh(load, [], signal);
  return {
    cards: [card("Records in", records.element), card("Traffic", traffic.element)],
    range: segmented("Time shown", RANGES, rangeMs, (value) => {
      rangeMs = value;
      draw();
    }),
    add({ rates, as_of_ms: asOfMs }) {
      if (!rates || !(asOfMs > (points.at(-1)?.[0] ?? 0))) return;
      points.push([asOfMs, rates.records_in_per_s, rates.bytes_in_per_s, rates.bytes_out_per_s]);
      draw();
    },
  };
}

function shortTable(options, names, signal) {
  const { load } = options;
  const table = new DataTable({
    ...options, signal,
    load: async () => {
      const { items } = await load();
      return { total: items.length, items };
    },
  });
  table.element.classList.add("short");
  keepFresh(() => table.refresh(), names, signal);
  return table.element;
}

function busiestTopics(signal) {
  const table = shortTable({
    label: "Busiest topics", noun: "topic",
    columns: [
      { id: "name", label: "Topic", cell: ({ name }) => h("a", { href: href(["topics", name]) }, name) },
      { id: "rate", label: "Records in", isNumber: true, cell: (row) => perSecond(row.records_in_per_s), width: "w-m" },
      { id: "records", isMinor: true, label: "Records", isNumber: true, cell: ({ records }) => count(records), width: "w-m" },
      { id: "bytes", label: "Stored", isNumber: true, cell: (row) => bytes(row.bytes), width: "w-m" },
    ],
    load: () => api.topics({ limit: 5, sort: "-records_in_per_s" }, signal),
    empty: () => emptyState("No topics yet.", h("a", { href: href(["topics"]) }, "Create one")),
  }, ["topics"], signal);
  return card(["Busiest topics", h("a", { href: href(["topics"]) }, "All topics")], table);
}

function laggingGroups(signal) {
  const table = shortTable({
    label: "Groups by lag", noun: "group",
    columns: [
      { id: "group_id", label: "Group", cell: ({ group_id: id }) => h("a", { href: href(["groups", id]) }, id) },
      { id: "state", label: "State", cell: ({ state }) => stateBadge(state), width: "w-l" },
      { id: "lag", label: "Lag", isNumber: true, cell: ({ lag }) => count(lag), width: "w-m" },
    ],
    load: () => api.groups({ limit: 5, sort: "-lag" }, signal),
    empty: () => emptyState("No consumer groups yet.", "A group appears here when its first consumer joins."),
  }, ["groups"], signal);
  return card(["Groups by lag", h("a", { href: href(["groups"]) }, "All groups")], table);
}

function quorumCard() {
  const body = h("tbody");
  const note = h("span", { class: "subtitle" });
  const element = card(["Metadata quorum", note], h("div", { class: "table-scroll" }, h("table", { class: "data" },
    h("caption", { class: "unseen" }, "Members of the metadata quorum"),
    h("thead", null, h("tr", null, ["Node", "Role"].map((text) => h("th", { scope: "col" }, text)),
      ["Log end", "Behind by", "Caught up"].map((text) => h("th", { scope: "col", class: "number" }, text)))), body)));
  const line = (member, role, tone) => h("tr", null, h("td", null, String(member.id)), h("td", null, badge(role, tone)),
    h("td", { class: "number" }, count(member.log_end_offset)), h("td", { class: "number" }, count(member.lag)),
    h("td", { class: "number" }, role === "leader" ? "–" : ago(member.last_caught_up_ms)));
  return {
    element,
    show(quorum) {
      element.hidden = !quorum;
      if (!quorum) return;
      note.textContent = `epoch ${count(quorum.leader_epoch)} · committed to ${count(quorum.high_watermark)}`;
      fill(body, quorum.voters.map((voter) => line(voter, voter.is_leader ? "leader" : "voter", voter.is_leader ? "good" : "plain")),
        (quorum.observers ?? []).map((observer) => line(observer, "observer", "plain")));
    },
  };
}
