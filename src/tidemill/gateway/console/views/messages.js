// The message browser: find by offset, time, key or text, read on, follow what arrives, look at one record whole.

import * as api from "../api.js";
import { fill, h, icon } from "../dom.js";
import { ago, bytes, count, inputTime, nearTime, plural, utc } from "../format.js";
import { bind } from "../keys.js";
import { live } from "../live.js";
import { emptyState, problem } from "../parts.js";
import { claimLine, preview } from "../payload.js";
import { note } from "../router.js";
import { DataTable, loadFrom } from "../table.js";
import { recordPane } from "./record_pane.js";
import { Tail } from "./tail.js";

const DEFAULT_LIMIT = 100;
// The gateway takes no longer request line.
const FROM_CHARACTERS_MAX = 24_000;
const LIMITS = [25, 100, 250, 500];
// So many records are looked at in one question; a search asks until it has found enough, or there are no more.
const SCANNED_AT_ONCE = 25_000;
const nameOf = ({ partition, offset }) => `${partition}:${offset}`;

export function messagesTab({ name, topic, query, signal }) {
  return new MessageBrowser(name, topic, query, signal).element;
}

/** What is looked for, as inputs. `read` gives the API's parameters, `address` what the URL keeps. */
class SearchForm {
  constructor(query, search) {
    const [kind, value = ""] = (query.get("from") ?? "latest").split(/:(.*)/s);
    const text = (label, name, attributes = {}) => h("input", { type: "text", placeholder: label, "aria-label": label, value: query.get(name) ?? "", spellcheck: "false", autocomplete: "off", ...attributes });
    const choice = (value, label) => h("option", { value, selected: value === kind }, label);
    this.kind = h("select", { "aria-label": "Start from" }, choice("latest", "Newest"), choice("earliest", "Oldest"), choice("offset", "Offset"), choice("time", "Time"));
    this.offset = h("input", { type: "number", min: "0", step: "1", "aria-label": "Offset", placeholder: "offset", value: kind === "offset" ? value : "", class: "short" });
    this.time = h("input", { type: "datetime-local", step: "0.001", "aria-label": "Time", value: inputTime(kind === "time" ? Number(value) : Date.now() - 3_600_000) });
    this.partition = h("input", { type: "number", min: "0", step: "1", placeholder: "all partitions", "aria-label": "Partition", value: query.get("partition") ?? "", class: "short" });
    this.key = text("Key equals", "key");
    this.contains = text("Contains", "contains", { data: { search: "" }, "aria-keyshortcuts": "/" });
    this.limit = h("select", { "aria-label": "Records to show" }, LIMITS.map((limit) => h("option", { value: limit, selected: String(limit) === (query.get("limit") ?? String(DEFAULT_LIMIT)) }, `${limit} records`)));
    this.element = h("form", { class: "toolbar finder", "aria-label": "Find messages", onsubmit: (event) => {
      event.preventDefault();
      search();
    } }, this.kind, this.offset, this.time, this.partition, this.key, this.contains, this.limit, h("button", { type: "submit", class: "primary" }, "Find"));
    this.kind.addEventListener("change", () => this.#adapt());
    this.#adapt();
  }

  #adapt() {
    this.offset.hidden = this.kind.value !== "offset";
    this.time.hidden = this.kind.value !== "time";
  }

  #from() {
    if (this.kind.value === "offset") return `offset:${this.offset.value || 0}`;
    if (this.kind.value === "time") return `time:${new Date(this.time.value).getTime() || 0}`;
    return this.kind.value;
  }

  filters() {
    return { partition: this.partition.value, key: this.key.value, contains: this.contains.value };
  }

  read() {
    return { ...this.filters(), from: this.#from(), limit: this.limit.value };
  }

  address() {
    const { from, limit, ...rest } = this.read();
    return { ...rest, from: from === "latest" ? null : from, limit: limit === String(DEFAULT_LIMIT) ? null : limit };
  }
}

class MessageBrowser {
  #rows = [];
  #selected = null;
  #next = null;
  #asked = null;
  #scanned = 0;
  #isLooking = false;
  #shown = new AbortController();
  #search = new AbortController();
  #tail = null;

  constructor(name, topic, query, signal) {
    this.name = name;
    this.topic = topic;
    this.signal = signal;
    this.form = new SearchForm(query, () => this.#find(true));
    this.#build();
    bind("t", "Follow what arrives, or stop", () => this.#toggleTail(), signal);
    bind("Escape", "Close the record", () => this.#close(), signal);
    bind(" ", "Pause or go on following", () => this.#tail?.togglePause(), signal);
    topic.addEventListener("produced", ({ detail }) => this.#produced(detail));
    live.on("resync", () => this.#trouble.childElementCount > 0 && this.#find(), signal);
    signal.addEventListener("abort", () => {
      this.#search.abort();
      this.#shown.abort();
      this.#tail?.stop();
    });
    if (query.get("tail") === "true") this.#startTail();
    else this.#find();
  }

  #build() {
    this.#table = new DataTable({
      label: `Messages of ${this.name}`, noun: "record", signal: this.signal, stamp: nameOf, load: loadFrom(() => this.#rows),
      isSelected: (row) => this.#selected !== null && nameOf(row) === this.#selected,
      open: (row) => this.#open(row), moved: (row) => this.#selected !== null && this.#open(row),
      columns: [
        { id: "partition", isMinor: true, label: "Partition", isNumber: true, width: "w-s", cell: (row) => count(row.partition) },
        { id: "offset", label: "Offset", isNumber: true, width: "w-m", cell: (row) => count(row.offset) },
        { id: "time", isMinor: true, label: "Time", width: "w-time", cell: (row) => h("time", { title: `${utc(row.timestamp_ms)}, ${ago(row.timestamp_ms)}` }, nearTime(row.timestamp_ms)) },
        { id: "key", label: "Key", width: "w-key", cell: (row) => preview(row.key) },
        { id: "value", label: "Value", cell: (row) => claimLine(row) ?? preview(row.value) },
        { id: "size", isMinor: true, isExtra: true, label: "Size", isNumber: true, width: "w-s", cell: (row) => bytes(row.value_bytes) },
      ],
      empty: () => this.#emptyText(),
    });
    this.#status = h("div", { class: "status", role: "status" });
    this.#progress = h("progress", { "aria-label": "How much of the topic was read", hidden: true });
    this.#stop = h("button", { type: "button", hidden: true, onclick: () => this.#stopSearch() }, icon("stop"), "Stop");
    this.#more = h("button", { type: "button", hidden: true, onclick: () => this.#goOn() });
    this.#follow = h("button", { type: "button", class: "follow", "aria-pressed": "false", "aria-keyshortcuts": "t", onclick: () => this.#toggleTail() });
    this.#pause = h("button", { type: "button", hidden: true, "aria-keyshortcuts": "Space", onclick: () => this.#tail?.togglePause() });
    this.#trouble = h("div", { class: "trouble" });
    this.#pane = h("aside", { class: "record", "aria-label": "Record", hidden: true });
    this.element = h("div", { class: "tab browser" }, this.form.element,
      h("div", { class: "toolbar thin" }, this.#status, this.#progress, h("span", { class: "spring" }), this.#stop, this.#more, this.#pause, this.#follow),
      this.#trouble, h("div", { class: "split" }, this.#table.element, this.#pane));
    this.#showFollow();
  }

  #table;
  #status;
  #progress;
  #stop;
  #more;
  #follow;
  #pause;
  #trouble;
  #pane;

  async #find(isStep = false) {
    this.#stopTail();
    note(["topics", this.name, "messages"], this.form.address(), isStep);
    this.#rows = [];
    this.#scanned = 0;
    this.#asked = this.form.read();
    this.#close();
    await this.#look(this.#asked);
  }

  #goOn() {
    return this.#look({ ...this.#asked, from: this.#next });
  }

  /** Asks until as many records are found as are wanted. What was found is shown meanwhile. */
  async #look(query) {
    this.#search.abort();
    const search = (this.#search = new AbortController());
    const wanted = this.#rows.length + Number(query.limit);
    this.#next = query.from;
    this.#showSearch(0);
    fill(this.#trouble);
    try {
      do {
        if (this.#next.length > FROM_CHARACTERS_MAX) throw new Error("The topic has too many partitions to read on in all of them: choose one.");
        const asked = { ...query, from: this.#next, limit: wanted - this.#rows.length, max_scan: SCANNED_AT_ONCE };
        const answer = await api.messages(this.name, asked, search.signal);
        await this.#take(answer, asked.from);
        this.#showSearch(answer.remaining);
      } while (this.#next !== null && this.#rows.length < wanted);
      this.#showFound(this.#next === null ? ", to the end" : "");
      // Where there are none, it is said now why.
      if (this.#rows.length === 0) await this.#table.refresh();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#showFound("");
      fill(this.#trouble, problem(error, () => this.#look(query)));
    }
  }

  async #take(answer, from) {
    const isFirst = this.#rows.length === 0;
    this.#rows = [...this.#rows, ...answer.items];
    this.#scanned += answer.scanned;
    this.#next = nextFrom(answer, from);
    await (isFirst ? this.#table.reload() : this.#table.refresh());
  }

  #stopSearch() {
    this.#search.abort();
    this.#showFound(", stopped");
    this.#table.refresh();
  }

  #showSearch(remaining) {
    const all = this.#scanned + remaining;
    this.#status.textContent = this.#scanned === 0 ? "Looking…" : `Looking… ${count(this.#scanned)} of ${count(all)} read, ${count(this.#rows.length)} found`;
    this.#progress.hidden = this.#scanned === 0;
    this.#progress.max = all || 1;
    this.#progress.value = this.#scanned;
    this.#more.hidden = true;
    this.#stop.hidden = false;
    this.#isLooking = true;
  }

  #showFound(end) {
    const hadFocus = document.activeElement === this.#stop;
    const read = this.#scanned > this.#rows.length ? ` of ${count(this.#scanned)} read` : "";
    this.#isLooking = false;
    this.#status.textContent = `${plural(this.#rows.length, "record")}${read}${end}`;
    this.#hideSearch();
    this.#more.hidden = this.#next === null;
    this.#more.textContent = end === ", stopped" ? "Go on" : this.#next?.startsWith("before:") ? "Older records" : "Further records";
    if (hadFocus && !this.#more.hidden) this.#more.focus();
  }

  #hideSearch() {
    this.#isLooking = false;
    this.#stop.hidden = true;
    this.#progress.hidden = true;
  }

  #emptyText() {
    if (this.#tail) return emptyState("Waiting for records…", "They appear here as they are written.");
    const { key, contains } = this.form.filters();
    if (this.#isLooking) return emptyState("Looking…", "What matches appears here as it is found.");
    if (key || contains) return emptyState("No record matches.", this.#next === null ? "Everything was read. Try another key or text." : "Not everything was read: the search was stopped.");
    if (this.form.kind.value === "latest" || this.form.kind.value === "earliest") {
      return emptyState("No records here yet.", ["Press ", h("kbd", null, "p"), " to produce one, or on the command line: ", h("code", null, `tidemill produce ${this.name}`)]);
    }
    return emptyState("No records from there on.", "Start from the newest or the oldest instead.");
  }

  // --- one record ---

  #open(row) {
    if (this.#selected === nameOf(row)) return;
    this.#selected = nameOf(row);
    this.#pane.hidden = false;
    this.#shown.abort();
    this.#shown = new AbortController();
    fill(this.#pane, recordPane(this.name, row, () => this.#close(), this.#shown.signal));
    this.#table.redraw();
  }

  #close() {
    const hadFocus = this.#pane.contains(document.activeElement);
    this.#selected = null;
    this.#shown.abort();
    this.#pane.hidden = true;
    this.#table.redraw();
    if (hadFocus) this.#table.focus();
  }

  #produced({ partition_id: partition, offset }) {
    if (this.#tail) return;
    this.#find().then(() => {
      const row = this.#rows.find((candidate) => candidate.partition === partition && candidate.offset === offset);
      if (row) this.#open(row);
    });
  }

  // --- following ---

  #toggleTail() {
    if (this.#tail) {
      this.#find();
      return;
    }
    const isPressed = document.activeElement === this.#follow;
    this.#startTail();
    // The next thing that is wanted is a pause: the space bar should not end the following instead.
    if (isPressed) this.#pause.focus();
  }

  #startTail() {
    this.#search.abort();
    this.#rows = [];
    this.#next = null;
    this.#hideSearch();
    this.#more.hidden = true;
    fill(this.#trouble);
    note(["topics", this.name, "messages"], { ...this.form.address(), tail: true });
    this.#tail = new Tail(this.name, this.form.filters(), (rows, words) => {
      this.#rows = rows;
      this.#status.textContent = words;
      this.#showFollow();
      this.#table.refresh();
    });
    this.#tail.start();
    this.#showFollow();
    this.#table.reload();
  }

  #stopTail() {
    this.#tail?.stop();
    this.#tail = null;
    this.#showFollow();
  }

  #showFollow() {
    const isOn = this.#tail !== null;
    this.#follow.setAttribute("aria-pressed", String(isOn));
    fill(this.#follow, h("span", { class: `dot-state ${isOn ? "live" : ""}` }), isOn ? "Stop following" : "Follow live");
    this.#pause.hidden = !isOn;
    fill(this.#pause, icon(this.#tail?.isPaused ? "play" : "pause"), this.#tail?.isPaused ? "Go on" : "Pause");
  }
}

/** `from` of the page after this one; null when there is none. The newest are read backward. */
function nextFrom({ next, previous, is_complete: isComplete }, asked) {
  if (isComplete) return null;
  const isBackward = asked === "latest" || asked.startsWith("before:");
  const places = Object.entries(isBackward ? previous : next);
  return `${isBackward ? "before" : "offsets"}:${places.map(([partition, offset]) => `${partition}:${offset}`).join(",")}`;
}
