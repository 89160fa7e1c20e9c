// One topic: its figures, and tabs for partitions, messages, configuration, groups and, where it has them, delayed messages and dead letters.

import * as api from "../api.js";
import { fill, h, icon } from "../dom.js";
import { bytes, count, perSecond, plural } from "../format.js";
import { bind } from "../keys.js";
import { keepFresh } from "../live.js";
import { badge, pageHead, problem } from "../parts.js";
import { go, href } from "../router.js";
import { configTab } from "./config.js";
import { deadLettersTab } from "./dead_letters.js";
import { messagesTab } from "./messages.js";
import { partitionsTab } from "./partitions.js";
import { shrinkDialog, shrinkProgress } from "./shrink.js";
import { deleteTopicDialog, produceDialog } from "./topic_dialogs.js";
import { topicGroupsTab } from "./topic_groups.js";
import { waitingTab } from "./waiting.js";

const TABS = [
  ["partitions", "Partitions", partitionsTab],
  ["messages", "Messages", messagesTab],
  ["config", "Configuration", configTab],
  ["groups", "Groups", topicGroupsTab],
  ["waiting", "Waiting", waitingTab],
  ["dead-letters", "Dead letters", deadLettersTab],
];
// Tabs that only some topics have.
const HIDDEN_TABS = new Set(["waiting", "dead-letters"]);
// Share groups need the setting; other writers of dead letters have names for their topics.
const DEAD_LETTER_NAME = /dlq|dlt|dead.?letter/i;

const ACTIVE = "tidemill.partitions.active";
const config = (info, name) => info?.configs?.find((each) => each.name === name)?.value ?? null;

export function topicView({ parts, query, signal }) {
  const [, name, tabId = "partitions"] = parts;
  const figures = h("div", { class: "figures" });
  const trouble = h("div", { class: "trouble" });
  const shrinking = shrinkProgress(name, signal, () => topic.refresh());
  const topic = new TopicState(name, signal, (state) => {
    fill(trouble, state.error && problem(state.error, () => topic.refresh()));
    if (state.info) fill(figures, figureList(state.info));
    shrinking.follow(Number(config(state.info, ACTIVE) ?? 0));
    fewer.disabled = !(state.info?.partitions > 1) || state.info.is_internal || config(state.info, "tidemill.view.source") !== null;
    const reveal = (id) => (strip.querySelector(`[data-tab=${id}]`).hidden = false);
    if (config(state.info, "tidemill.delays.enable") === "true") reveal("waiting");
    if (DEAD_LETTER_NAME.test(name) || config(state.info, "errors.deadletterqueue.group.enable") === "true") reveal("dead-letters");
  });
  const produce = async () => {
    const delivery = await produceDialog(name, topic.info?.partitions ?? 1);
    if (delivery) topic.dispatchEvent(new CustomEvent("produced", { detail: delivery }));
  };
  const shrink = async () => (await shrinkDialog(name, topic.info.partitions, config(topic.info, "retention.ms") === "-1")) && topic.refresh();
  const fewer = h("button", { type: "button", disabled: true, onclick: shrink }, "Fewer partitions…");
  const remove = async () => {
    if (await deleteTopicDialog(name, topic.info?.records, (change) => topic.withoutReads(change))) go(["topics"]);
  };
  bind("p", "Produce a message", produce, signal);
  TABS.forEach(([id, label], at) => bind(String(at + 1), `${label} of the topic`, () => go(["topics", name, id]), signal));
  const tab = TABS.find(([id]) => id === tabId) ?? TABS[0];
  const strip = tabStrip(name, tab[0]);
  const content = tab[2]({ name, topic, query, signal });
  topic.watch();
  return h("div", { class: "view" },
    pageHead(name, {
      trail: [["Topics", href(["topics"])]],
      actions: [h("button", { type: "button", onclick: produce, "aria-keyshortcuts": "p" }, icon("plus"), "Produce"), fewer,
        h("button", { type: "button", class: "danger-quiet", onclick: remove }, "Delete…")],
    }),
    figures, trouble, shrinking.element, strip, content);
}

/** What the tabs share: the topic as last read. Fires "info" when it was read again and "produced" after a dialog. */
class TopicState extends EventTarget {
  info = null;
  error = null;
  #show;
  #isPaused = false;

  constructor(name, signal, show) {
    super();
    this.name = name;
    this.signal = signal;
    this.#show = show;
  }

  watch() {
    keepFresh(() => this.refresh(), ["topics"], this.signal);
  }

  /** Runs `change`, which deletes the topic. The news of it may arrive first, and a read would then answer 404. */
  async withoutReads(change) {
    this.#isPaused = true;
    try {
      await change();
    } catch (error) {
      this.#isPaused = false;
      throw error;
    }
  }

  async refresh() {
    if (this.#isPaused) return;
    try {
      this.info = await api.topic(this.name, this.signal);
      this.error = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.error = error;
    }
    this.#show(this);
    this.dispatchEvent(new Event("info"));
  }
}

function figureList(info) {
  const figure = (label, value) => h("div", null, h("dt", null, label), h("dd", null, value));
  const health = info.offline > 0 ? badge(`${count(info.offline)} offline`, "bad")
    : info.under_replicated > 0 ? badge(`${count(info.under_replicated)} under-replicated`, "warn") : badge("ok", "good");
  return h("dl", null, figure("Health", health), figure("Partitions", count(info.partitions)), figure("Replication", plural(info.replication_factor, "replica")),
    figure("Records", count(info.records)), figure("Records in", perSecond(info.records_in_per_s)), figure("Stored", bytes(info.bytes)),
    info.is_internal && figure("Kind", badge("internal")), viewOf(info, figure));
}

function viewOf(info, figure) {
  const source = config(info, "tidemill.view.source");
  return source && figure("Kind", ["view of ", h("a", { href: href(["topics", source]) }, source)]);
}

function tabStrip(name, current) {
  return h("nav", { class: "tabs", "aria-label": "Topic" }, TABS.map(([id, label]) => h("a", {
    href: href(["topics", name, id]), "aria-current": id === current ? "page" : null, data: { tab: id }, hidden: HIDDEN_TABS.has(id) && id !== current,
  }, label)));
}
