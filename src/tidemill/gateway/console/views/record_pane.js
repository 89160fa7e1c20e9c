// One record: where and when, key, headers, value; each can be copied. What the list cut is loaded whole, or downloaded.

import * as api from "../api.js";
import { fill, h, icon } from "../dom.js";
import { ago, bytes, count, timestamp, utc } from "../format.js";
import { copyText, problem, toast } from "../parts.js";
import { block, preview, textOf, wholePayload } from "../payload.js";

const TYPES = { create_time: "set by the producer", log_append_time: "set by the broker" };

/** The key or the value of a record. */
class Part {
  #topic;
  #row;
  #name;
  #payload;
  #size;
  #signal;

  constructor(topic, row, name, signal) {
    this.#topic = topic;
    this.#row = row;
    this.#name = name;
    this.#payload = row[name];
    this.#size = row[`${name}_bytes`];
    this.#signal = signal;
    this.element = h("section");
    this.#show();
  }

  get #label() {
    return this.#name === "key" ? "Key" : "Value";
  }

  get #isCut() {
    return this.#payload.kind === "cut";
  }

  #show() {
    const isNull = this.#payload.kind === "null";
    const actions = isNull ? null : [
      h("button", { type: "button", class: "quiet", "aria-label": `Copy the ${this.#name}`, onclick: (event) => this.#copy(event.currentTarget) }, icon("copy"), "Copy"),
      h("a", { class: "button quiet", href: api.partAddress(this.#topic, this.#row, this.#name), download: "", "aria-label": `Download the ${this.#name}` }, icon("download"), "Download"),
    ];
    const size = isNull && this.#name === "key" ? "none" : `${bytes(this.#size)}${this.#isCut || this.#name === "key" ? "" : ` · ${this.#payload.kind}`}`;
    fill(this.element,
      h("div", { class: "part-head" }, h("h3", null, this.#label), h("span", { class: "faint" }, size), h("span", { class: "spring" }), actions),
      this.#isCut && this.#cutNote(),
      this.#name === "value" && this.#row.claim?.error && h("p", { class: "cut-note" }, `The payload is in an object store, and its claim cannot be resolved: ${this.#row.claim.error}`),
      isNull && this.#name === "key" ? null : block(this.#payload, this.#label));
  }

  #cutNote() {
    return h("div", { class: "cut-note" }, h("p", null, this.#name === "value" && this.#row.claim ? `The payload is in an object store: ${this.#row.claim.uri}` : "Only the first 64 KB."),
      h("button", { type: "button", onclick: (event) => this.#load(event.currentTarget) }, `Load the whole ${this.#name}`));
  }

  async #whole() {
    return this.#isCut ? wholePayload(await api.messagePart(this.#topic, this.#row, this.#name, this.#signal)) : this.#payload;
  }

  async #load(button) {
    button.disabled = true;
    button.textContent = "Loading…";
    try {
      this.#payload = await this.#whole();
      this.#show();
      this.element.querySelector(".payload").focus({ preventScroll: true });
    } catch (error) {
      if (error.name === "AbortError") return;
      button.closest(".cut-note").replaceWith(problem(error, () => this.#show()));
    }
  }

  /** All of it, whether it is shown or not. */
  async #copy(button) {
    button.disabled = true;
    try {
      await copyText(textOf(await this.#whole()), this.#name);
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message, "bad");
    } finally {
      button.disabled = false;
    }
  }
}

function headerTable(headers) {
  return h("table", { class: "headers" }, h("caption", { class: "unseen" }, "Headers"), h("tbody", null, headers.map((header) =>
    h("tr", null, h("th", { scope: "row" }, header.name ?? header.key), h("td", null, typeof header.value === "object" && header.value !== null ? preview(header.value) : h("code", null, String(header.value)))))));
}

function headerPart(headers) {
  return h("section", null, h("div", { class: "part-head" }, h("h3", null, "Headers"), h("span", { class: "faint" }, count(headers.length))), headerTable(headers));
}

/** Nothing new for those who live by it. */
function utcLine(ms) {
  return utc(ms).startsWith(timestamp(ms)) ? null : [h("br"), h("span", { class: "faint" }, utc(ms))];
}

/** `signal` aborts when another record is shown instead. */
export function recordPane(topic, row, close, signal) {
  const headers = row.headers ?? [];
  const kind = TYPES[String(row.timestamp_type).toLowerCase()] ?? "";
  return [
    h("div", { class: "record-head" }, h("h2", null, `Partition ${row.partition}, offset ${count(row.offset)}`),
      h("button", { type: "button", class: "quiet icon-only", "aria-label": "Close the record", onclick: close }, icon("close"))),
    h("p", { class: "record-time" }, h("time", null, timestamp(row.timestamp_ms)), h("span", { class: "faint" }, ` · ${ago(row.timestamp_ms)}${kind ? `, ${kind}` : ""}`), utcLine(row.timestamp_ms)),
    new Part(topic, row, "key", signal).element,
    headers.length > 0 && headerPart(headers),
    new Part(topic, row, "value", signal).element,
  ];
}
