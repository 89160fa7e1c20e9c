// Lines over time, in SVG: axes with round numbers and units, the values under the pointer or the arrow keys.
// Points are [ms, value, …] in order of time, one value for each series; null is a gap.

import { fill, h, svg } from "./dom.js";
import { clock, minute } from "./format.js";

const HEIGHT = 190;
const MARGIN = { top: 12, right: 14, bottom: 24, left: 58 };
const TICK_STEPS_S = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];

/** Round steps by 1, 2, 5 (or powers of 1,024 for bytes): [0, step, …] that reach `most`. */
export function scale(most, isBytes) {
  if (most <= 0) return [0, isBytes ? 1024 : 1];
  const unit = isBytes ? 1024 ** Math.max(0, Math.floor(Math.log(most) / Math.log(1024))) : 1;
  const rough = most / unit / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) * unit;
  const whole = isBytes ? Math.max(step, 1) : step;
  const ticks = [0];
  while (ticks.at(-1) < most) ticks.push(ticks.length * whole);
  return ticks;
}

export class Chart {
  #options;
  #points = [];
  #rangeMs;
  #width = 0;
  #hover = null;

  /** series: [{name, tone}], format(value) for the axis and the values, isWhole: values are counts. */
  constructor({ label, series, format, exact = format, isBytes = false, isWhole = false, rangeMs = 900_000, signal }) {
    this.#options = { label, series, format, exact, isBytes, isWhole };
    this.#rangeMs = rangeMs;
    this.#svg = svg("svg", { class: "chart-plot", height: HEIGHT, "aria-hidden": "true" });
    this.#tip = h("div", { class: "chart-tip", hidden: true });
    this.#legend = h("div", { class: "legend" }, series.map(({ name, tone }) => h("span", { class: `key ${tone}` }, name, h("b", null, "–"))));
    this.#box = h("div", {
      class: "chart-box", tabindex: "0", role: "img", "aria-label": label,
      onpointermove: (event) => this.#point(event), onpointerleave: () => this.#look(null), onblur: () => this.#look(null),
      onkeydown: (event) => this.#pressed(event),
    }, this.#svg, this.#tip);
    this.element = h("figure", { class: "chart" }, this.#legend, this.#box);
    const observer = new ResizeObserver(([entry]) => {
      this.#width = entry.contentRect.width;
      this.#draw();
    });
    observer.observe(this.#box);
    signal?.addEventListener("abort", () => observer.disconnect());
  }

  #svg;
  #tip;
  #legend;
  #box;

  show(points, rangeMs = this.#rangeMs) {
    this.#points = points;
    this.#rangeMs = rangeMs;
    this.#draw();
  }

  #visible() {
    const end = this.#points.at(-1)?.[0] ?? Date.now();
    return this.#points.filter(([ms]) => ms >= end - this.#rangeMs);
  }

  #frame() {
    const points = this.#visible();
    const end = points.at(-1)?.[0] ?? Date.now();
    // A young gateway has a short history: the axis fits it, from a minute on.
    const span = Math.min(this.#rangeMs, Math.max(60_000, end - (points[0]?.[0] ?? end)));
    const start = end - span;
    const most = Math.max(0, ...points.flatMap((point) => point.slice(1)).filter((value) => value !== null));
    let ticks = scale(most, this.#options.isBytes);
    if (this.#options.isWhole) ticks = ticks.filter(Number.isInteger);
    if (ticks.at(-1) < most) ticks.push(Math.ceil(most));
    const top = ticks.at(-1);
    const inner = Math.max(10, this.#width - MARGIN.left - MARGIN.right);
    const x = (ms) => MARGIN.left + (inner * (ms - start)) / (end - start);
    const y = (value) => HEIGHT - MARGIN.bottom - ((HEIGHT - MARGIN.top - MARGIN.bottom) * value) / top;
    return { points, start, end, ticks, x, y };
  }

  #draw() {
    if (!this.#width) return;
    const frame = this.#frame();
    this.#svg.setAttribute("width", this.#width);
    fill(this.#svg, this.#grid(frame), this.#lines(frame), this.#marks(frame));
    this.#describe(frame.points.at(-1));
  }

  #grid({ start, end, ticks, x, y }) {
    const right = this.#width - MARGIN.right;
    const rows = ticks.map((value) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { class: "axis", x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, this.#options.format(value)),
    ]);
    const fit = Math.max(2, Math.floor((right - MARGIN.left) / 80));
    const stepMs = 1000 * (TICK_STEPS_S.find((step) => (end - start) / 1000 / step <= fit) ?? 7200);
    const show = stepMs < 60_000 ? clock : minute;
    const columns = [];
    for (let ms = Math.ceil(start / stepMs) * stepMs; ms <= end; ms += stepMs) {
      columns.push(svg("text", { class: "axis", x: x(ms), y: HEIGHT - 6, "text-anchor": "middle" }, show(ms)));
    }
    return [rows, columns];
  }

  #lines({ points, x, y }) {
    return this.#options.series.map(({ tone }, at) => {
      const runs = [[]];
      for (const point of points) {
        const value = point[at + 1];
        if (value === null || value === undefined) runs.push([]);
        else runs.at(-1).push(`${x(point[0]).toFixed(1)},${y(value).toFixed(1)}`);
      }
      return runs.filter((run) => run.length > 0).map((run) => {
        const [left, right] = [run[0].split(",")[0], run.at(-1).split(",")[0]];
        return [
          svg("polygon", { class: `area ${tone}`, points: `${left},${y(0)} ${run.join(" ")} ${right},${y(0)}` }),
          run.length > 1
            ? svg("polyline", { class: `line ${tone}`, points: run.join(" ") })
            : svg("circle", { class: `dot ${tone}`, cx: left, cy: run[0].split(",")[1], r: 2.5 }),
        ];
      });
    });
  }

  #marks({ points, x, y }) {
    const point = this.#hover === null ? null : points[this.#hover];
    this.#tip.hidden = !point;
    if (!point) return [];
    const { series, exact } = this.#options;
    const at = x(point[0]);
    fill(this.#tip, h("time", null, clock(point[0])), series.map(({ name, tone }, index) => h("div", { class: `key ${tone}` }, name, h("b", null, exact(point[index + 1])))));
    const width = this.#tip.offsetWidth;
    this.#tip.style.left = `${Math.max(0, at + 12 + width > this.#width ? at - 12 - width : at + 12)}px`;
    const dots = series.map(({ tone }, index) => (point[index + 1] ?? null) !== null && svg("circle", { class: `dot ${tone}`, cx: at, cy: y(point[index + 1]), r: 3.5 }));
    return [svg("line", { class: "rule", x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }), dots];
  }

  #describe(last) {
    const { label, series, exact } = this.#options;
    const values = series.map((_, index) => exact(last?.[index + 1] ?? null));
    series.forEach((_, index) => (this.#legend.children[index].lastChild.textContent = values[index]));
    this.#box.setAttribute("aria-label", `${label}: ${series.map(({ name }, index) => `${name} ${values[index]}`).join(", ")}`);
  }

  #point(event) {
    const { points, x } = this.#frame();
    const at = event.clientX - this.#box.getBoundingClientRect().left;
    let nearest = null;
    points.forEach(([ms], index) => {
      if (nearest === null || Math.abs(x(ms) - at) < Math.abs(x(points[nearest][0]) - at)) nearest = index;
    });
    this.#look(nearest);
  }

  #pressed(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const last = this.#visible().length - 1;
    this.#look(Math.max(0, Math.min(last, (this.#hover ?? last + 1) + steps[event.key])));
  }

  #look(index) {
    this.#hover = index;
    this.#draw();
  }
}
