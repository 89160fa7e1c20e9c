// The message browser: find by offset, time, key or text, read on, follow what arrives, look at one record whole.

import * as api from "../api.js";
import { fill, h, icon } from "../dom.js";
import { ago, bytes, count, inputTime, nearTime, plural, utc } from "../format.js";
import { bind } from "../keys.js";
import { live } from "../live.js";
import { emptyState, problem } from "../parts.js";
import { preview } from "../payload.js";
import { note } from "../router.js";
import { DataTable, loadFrom } from "../table.js";
import { recordPane } from "./record_pane.js";
import { Tail } from "./tail.js";

const DEFAULT_LIMIT = 100;
// The gateway takes no longer request line.
const FROM_CHARACTERS_MAX = 24_000;
const LIMITS = [25, 100, 250, 500];
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
        { id: "value", label: "Value", cell: (row) => preview(row.value) },
        { id: "size", isMinor: true, isExtra: true, label: "Size", isNumber: true, width: "w-s", cell: (row) => bytes(row.value_bytes) },
      ],
      empty: () => this.#emptyText(),
    });
    this.#status = h("div", { class: "status", role: "status" });
    this.#more = h("button", { type: "button", hidden: true, onclick: () => this.#goOn() });
    this.#follow = h("button", { type: "button", class: "follow", "aria-pressed": "false", "aria-keyshortcuts": "t", onclick: () => this.#toggleTail() });
    this.#pause = h("button", { type: "button", hidden: true, onclick: () => this.#tail?.togglePause() });
    this.#trouble = h("div", { class: "trouble" });
    this.#pane = h("aside", { class: "record", "aria-label": "Record", hidden: true });
    this.element = h("div", { class: "tab browser" }, this.form.element,
      h("div", { class: "toolbar thin" }, this.#status, h("span", { class: "spring" }), this.#more, this.#pause, this.#follow),
      this.#trouble, h("div", { class: "split" }, this.#table.element, this.#pane));
    this.#showFollow();
  }

  #table;
  #status;
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
    await this.#ask(this.#asked);
  }

  #goOn() {
    if (this.#next.length > FROM_CHARACTERS_MAX) {
      fill(this.#trouble, problem(new Error("The topic has too many partitions to read on in all of them: choose one.")));
      return null;
    }
    return this.#ask({ ...this.#asked, from: this.#next });
  }

  async #ask(query) {
    this.#search.abort();
    const search = (this.#search = new AbortController());
    this.#status.textContent = "Looking…";
    this.#more.hidden = true;
    fill(this.#trouble);
    try {
      const answer = await api.messages(this.name, query, search.signal);
      const isFirst = this.#rows.length === 0;
      this.#rows = [...this.#rows, ...answer.items];
      this.#scanned += answer.scanned;
      this.#next = nextFrom(answer, query.from);
      this.#showStatus(answer);
      await (isFirst ? this.#table.reload() : this.#table.refresh());
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#status.textContent = "";
      fill(this.#trouble, problem(error, () => this.#ask(query)));
    }
  }

  #showStatus(answer) {
    const read = this.#scanned > this.#rows.length ? ` of ${count(this.#scanned)} read` : "";
    const end = answer.is_complete ? ", to the end" : "";
    this.#status.textContent = `${plural(this.#rows.length, "record")}${read}${end}`;
    this.#more.hidden = this.#next === null;
    this.#more.textContent = this.#next?.startsWith("before:") ? "Older records" : "Further records";
  }

  #emptyText() {
    if (this.#tail) return emptyState("Waiting for records…", "They appear here as they are written.");
    const { key, contains } = this.form.filters();
    if (key || contains) return emptyState("No record matches.", this.#next === null ? "Everything was read. Try another key or text." : "Not everything was read yet: go on with the button above.");
    if (this.form.kind.value === "latest" || this.form.kind.value === "earliest") {
      return emptyState("No records here yet.", ["Press ", h("kbd", null, "p"), " to produce one, or on the command line: ", h("code", null, `tidemill produce ${this.name}`)]);
    }
    return emptyState("No records from there on.", "Start from the newest or the oldest instead.");
  }

  // --- one record ---

  #open(row) {
    this.#selected = nameOf(row);
    this.#pane.hidden = false;
    fill(this.#pane, recordPane(row, () => this.#close()));
    this.#table.redraw();
  }

  #close() {
    const hadFocus = this.#pane.contains(document.activeElement);
    this.#selected = null;
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
    if (this.#tail) this.#find();
    else this.#startTail();
  }

  #startTail() {
    this.#search.abort();
    this.#rows = [];
    this.#next = null;
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
