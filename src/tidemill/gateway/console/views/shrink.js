// Fewer partitions: the dialog that begins it, and how far each partition is that takes no new records any more.

import * as api from "../api.js";
import { field, formDialog } from "../dialog.js";
import { fill, h, icon } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { card, checkbox, problem, toast } from "../parts.js";

const FOR_EVER = "This topic keeps its records for ever (retention.ms is -1). The partitions stay, readable, until their records are deleted.";

const warning = (text) => h("div", { class: "notice warn" }, icon("warn"), h("p", null, text));

/** Numbers under which a key keeps its partition. */
function divisors(total) {
  return Array.from({ length: total - 1 }, (_, at) => at + 1).filter((number) => total % number === 0);
}

/** Resolves to true when the topic is on its way to fewer partitions. */
export function shrinkDialog(topic, total, keepsForEver) {
  const number = h("input", { type: "number", min: "1", max: String(total - 1), step: "1", inputmode: "numeric", autofocus: true });
  let isUnkeyed = false;
  const unkeyed = checkbox("Allow any other number: records have no keys, or their order does not matter", false, (isOn) => (isUnkeyed = isOn));
  return formDialog({
    title: "Fewer partitions", action: "Take partitions away",
    body: [h("p", null, h("b", null, topic), ` has ${plural(total, "partition")}. Those that go take no new records, stay readable until retention has emptied them, and disappear then. Producers need not know.`),
      keepsForEver && warning(FOR_EVER), field("Partitions that stay", number, `A key keeps its partition with ${divisors(total).map(count).join(", ")}.`), unkeyed],
    submit: async () => {
      const wanted = Number(number.value);
      if (!Number.isInteger(wanted) || wanted < 1 || wanted >= total) throw new Error(`Choose a whole number from 1 to ${total - 1}.`);
      await api.beginShrink(topic, wanted, isUnkeyed);
      toast(`${topic} gets ${plural(wanted, "partition")}.`);
    },
  }).closed;
}

function cancelDialog(topic) {
  return formDialog({
    title: "Keep the partitions", action: "Keep the partitions",
    body: [h("p", null, "The partitions of ", h("b", null, topic), " that are left take new records again.")],
    submit: async () => {
      await api.cancelShrink(topic);
      toast(`${topic} keeps its partitions.`);
    },
  }).closed;
}

/** A card that is there while partitions of the topic are on their way out. `follow` gets how many stay, or 0. */
export function shrinkProgress(topic, signal, changed) {
  const keep = h("button", { type: "button", onclick: async () => (await cancelDialog(topic)) && changed() }, "Keep them…");
  const element = h("div", { class: "shrinking", hidden: true });
  const row = (each) => h("tr", null, h("td", null, `Partition ${count(each.partition)}`),
    h("td", { class: "number" }, plural(each.records_left, "record")), h("td", { class: "number" }, each.bytes === null ? "–" : bytes(each.bytes)));
  const show = ({ partitions, active, decommissioned, keeps_records_for_ever: isForEver }) => {
    element.hidden = decommissioned.length === 0;
    fill(element, card([`On its way from ${count(partitions)} to ${plural(active, "partition")}`, keep],
      isForEver && warning(FOR_EVER),
      h("table", { class: "data" }, h("caption", { class: "unseen" }, `Partitions of ${topic} that go`), h("thead", null, h("tr", null, h("th", { scope: "col" }, "Takes no new records"), h("th", { scope: "col", class: "number" }, "Left to read"), h("th", { scope: "col", class: "number" }, "Stored"))),
        h("tbody", null, decommissioned.map(row)))));
  };
  const follow = async (active) => {
    if (!active) {
      element.hidden = true;
      return;
    }
    try {
      show(await api.shrink(topic, signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      element.hidden = false;
      fill(element, problem(error));
    }
  };
  return { element, follow };
}
