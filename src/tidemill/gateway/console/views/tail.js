// Following a topic: a stream of what arrives, newest first, the last KEPT of it. Paused, it goes on collecting, and shows
// on the next go what came meanwhile.

import * as api from "../api.js";
import { count, plural } from "../format.js";

const KEPT = 1000;
const RETRY_MS = 2000;

export class Tail {
  isPaused = false;
  #source = null;
  #timer = null;
  #rows = [];
  #waiting = [];
  #arrived = 0;
  #skipped = 0;
  #show;

  constructor(topic, filters, show) {
    this.address = api.tailAddress(topic, filters);
    this.#show = show;
  }

  start() {
    const source = new EventSource(this.address);
    this.#source = source;
    source.addEventListener("open", () => this.#tell());
    source.addEventListener("messages", (event) => this.#heard(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      source.close();
      this.#show(this.#rows, "Not connected; trying again…");
      this.#timer = setTimeout(() => this.start(), RETRY_MS);
    });
  }

  stop() {
    clearTimeout(this.#timer);
    this.#source?.close();
  }

  togglePause() {
    this.isPaused = !this.isPaused;
    if (!this.isPaused) this.#take();
    this.#tell();
  }

  #heard({ items, skipped = 0 }) {
    this.#waiting.push(...items);
    this.#arrived += items.length;
    this.#skipped += skipped;
    if (this.#waiting.length > KEPT) this.#waiting.splice(0, this.#waiting.length - KEPT);
    if (!this.isPaused) this.#take();
    this.#tell();
  }

  #take() {
    this.#rows = [...this.#waiting.reverse(), ...this.#rows].slice(0, KEPT);
    this.#waiting = [];
  }

  #tell() {
    const skipped = this.#skipped > 0 ? `, ${count(this.#skipped)} too fast to show` : "";
    const state = this.isPaused ? `Paused: ${plural(this.#waiting.length, "new record")} waiting` : "Following";
    this.#show(this.#rows, `${state} · ${plural(this.#arrived, "record")} so far${skipped}`);
  }
}
