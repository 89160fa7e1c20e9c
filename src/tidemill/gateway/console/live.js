// One stream of server-sent events for the whole console, kept open while the tab is seen. When it breaks, the state
// says so, and it is tried again with a growing pause; "resync" tells the views to ask for everything anew.
//
// Events: "overview" (detail: the overview), "topics", "groups" (something changed, ask again), "state", "resync".

import { address } from "./api.js";

const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const EVENTS = ["overview", "topics", "groups"];

class Live extends EventTarget {
  state = "connecting"; // connecting, live, lost
  retryAtMs = 0;
  overview = null;
  #source = null;
  #timer = null;
  #failures = 0;
  #wasLive = false;

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#open()));
    // A page kept for the back button must not hold a connection; browsers allow six to one gateway.
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", () => this.#open());
    this.#open();
  }

  on(name, listener, signal) {
    this.addEventListener(name, listener, { signal });
  }

  retryNow() {
    this.#close();
    this.#open();
  }

  #open() {
    if (this.#source || document.hidden) return;
    clearTimeout(this.#timer);
    const source = new EventSource(address("live"));
    this.#source = source;
    source.addEventListener("open", () => this.#opened());
    source.addEventListener("error", () => this.#broke());
    for (const name of EVENTS) source.addEventListener(name, (event) => this.#heard(name, event.data));
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #opened() {
    const isAgain = this.#wasLive;
    this.#failures = 0;
    this.#wasLive = true;
    this.#become("live");
    if (isAgain) this.dispatchEvent(new Event("resync"));
  }

  #broke() {
    this.#close();
    const pauseMs = RETRY_MS[Math.min(this.#failures, RETRY_MS.length - 1)];
    this.#failures += 1;
    this.retryAtMs = Date.now() + pauseMs;
    this.#timer = setTimeout(() => this.#open(), pauseMs);
    this.#become("lost");
  }

  #heard(name, text) {
    const detail = JSON.parse(text);
    if (name === "overview") this.overview = detail;
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #become(state) {
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}

export const live = new Live();

/** Calls `refresh` when any of `names` is heard, after a reconnect, and every `everyMs` at least; never twice at once. */
export function keepFresh(refresh, names, signal, everyMs = 5000) {
  let isBusy = false;
  let isDue = false;
  async function run() {
    if (signal.aborted) return;
    if (isBusy) {
      isDue = true;
      return;
    }
    isBusy = true;
    try {
      await refresh();
    } finally {
      isBusy = false;
      if (isDue) {
        isDue = false;
        setTimeout(run, 250);
      }
    }
  }
  for (const name of [...names, "resync"]) live.on(name, run, signal);
  const timer = setInterval(() => !document.hidden && live.state !== "lost" && run(), everyMs);
  signal.addEventListener("abort", () => clearInterval(timer));
  return run();
}
