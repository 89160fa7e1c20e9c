// A table that shows any number of rows by asking for those on the screen. It is a real <table>: the rows above and
// below the window are two spacer rows of the right height, so that the scroll bar tells the truth. Rows have one height.
//
// Rows are pages of PAGE from `load({offset, limit, sort, query})` -> {total, items}. `refresh` asks again for the pages in
// sight and writes only the cells that changed, so that focus and the reader's eye stay where they are.
//
// Keys: arrows, Page Up and Down, Home and End move the focused row, Enter opens it.

import { fill, h } from "./dom.js";
import { count } from "./format.js";
import { problem } from "./parts.js";

const ROW_PX = 34;
const PAGE = 100;
const SPARE_ROWS = 12;

/** A `load` over an array that is there already. `fields` names the columns that a query looks into. */
export function loadFrom(rows, fields = []) {
  return async ({ offset, limit, sort, query }) => {
    const needle = (query ?? "").toLowerCase();
    let found = rows();
    if (needle) found = found.filter((row) => fields.some((field) => String(row[field] ?? "").toLowerCase().includes(needle)));
    if (sort) found = sorted(found, sort);
    return { total: found.length, items: found.slice(offset, offset + limit) };
  };
}

function sorted(rows, sort) {
  const isDown = sort.startsWith("-");
  const field = isDown ? sort.slice(1) : sort;
  const order = (a, b) => {
    const [x, y] = [a[field] ?? -Infinity, b[field] ?? -Infinity];
    if (typeof x === "string" && typeof y === "string") return x.localeCompare(y, "en", { numeric: true });
    return x < y ? -1 : Number(x > y);
  };
  return [...rows].sort((a, b) => (isDown ? order(b, a) : order(a, b)));
}

function kindOf({ isNumber, isMinor, isExtra }) {
  return `${isNumber ? "number" : ""} ${isMinor ? "minor" : ""} ${isExtra ? "extra" : ""}`.trim();
}

export class DataTable {
  #options;
  #pages = new Map();
  #shown = new Map();
  #total = 0;
  #first = 0;
  #active = 0;
  #round = 0;
  #isDrawDue = false;

  /**
   * columns: [{id, label, cell(row) -> text or node, isNumber, isSortable, isMinor: not on small screens, isExtra: not beside a pane, width, hint}], label: of the table,
   * load, sort, query, open(row): for Enter and click, moved(row): the focus went there, empty(): element,
   * changed({sort}): the reader sorted it, stamp(row): what a row is known by (all of it, if not given), isSelected(row).
   */
  constructor(options) {
    this.#options = { sort: "", query: "", ...options };
    this.#build();
    options.signal?.addEventListener("abort", () => this.#observer.disconnect());
  }

  get total() {
    return this.#total;
  }

  /** The selection changed. */
  redraw() {
    this.#draw();
  }

  #build() {
    const { columns, label } = this.#options;
    this.#headers = columns.map((column) => this.#header(column));
    this.#top = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td"));
    this.#bottom = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td"));
    this.#body = h("tbody", { onkeydown: (event) => this.#pressed(event) }, this.#top, this.#bottom);
    const widths = h("colgroup", null, columns.map((column) => h("col", { class: `${column.width ?? ""} ${column.isMinor ? "minor" : ""} ${column.isExtra ? "extra" : ""}` })));
    this.#table = h("table", { class: "data" }, h("caption", { class: "unseen" }, label), widths, h("thead", null, h("tr", null, this.#headers)), this.#body);
    this.#scroller = h("div", { class: "table-scroll", onscroll: () => this.#drawSoon() }, this.#table);
    this.#instead = h("div", { class: "table-instead" });
    this.#foot = h("div", { class: "table-foot", "aria-live": "polite" });
    this.element = h("div", { class: "table-box" }, this.#scroller, this.#instead, this.#foot);
    this.#observer = new ResizeObserver(() => this.#drawSoon());
    this.#observer.observe(this.#scroller);
  }

  #headers;
  #top;
  #bottom;
  #body;
  #table;
  #scroller;
  #instead;
  #foot;
  #observer;

  #header(column) {
    const kind = kindOf(column);
    if (!column.isSortable) return h("th", { scope: "col", class: kind, title: column.hint }, column.label);
    const button = h("button", { type: "button", class: "sort", title: column.hint, onclick: () => this.#sortBy(column) }, column.label, h("span", { class: "sort-mark", "aria-hidden": "true" }));
    const cell = h("th", { scope: "col", class: kind, data: { id: column.id } }, button);
    this.#mark(cell);
    return cell;
  }

  #mark(cell) {
    if (!cell.dataset.id) return;
    const { sort } = this.#options;
    const state = sort === cell.dataset.id ? "ascending" : sort === `-${cell.dataset.id}` ? "descending" : "none";
    cell.setAttribute("aria-sort", state);
  }

  #sortBy(column) {
    const { id, isNumber } = column;
    const now = this.#options.sort;
    // Numbers are asked for their largest, names from A.
    const first = isNumber ? `-${id}` : id;
    const second = isNumber ? id : `-${id}`;
    this.#options.sort = now === first ? second : first;
    for (const cell of this.#headers) this.#mark(cell);
    this.#options.changed?.({ sort: this.#options.sort });
    this.reload();
  }

  search(query) {
    this.#options.query = query;
    return this.reload();
  }

  /** From the top: another query, order or filter. */
  reload() {
    this.#scroller.scrollTop = 0;
    this.#active = 0;
    return this.refresh();
  }

  /** The rows in sight, as they are now. */
  async refresh() {
    const round = (this.#round += 1);
    const [from, to] = this.#window();
    const wanted = new Set([Math.floor(from / PAGE), Math.floor(Math.max(from, to - 1) / PAGE)]);
    this.#body.setAttribute("aria-busy", "true");
    try {
      const pages = await Promise.all([...wanted].map(async (page) => [page, await this.#ask(page)]));
      if (round !== this.#round) return;
      this.#pages.clear();
      for (const [page, answer] of pages) this.#keep(page, answer);
      this.#settle(null);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (round === this.#round) this.#settle(error);
    } finally {
      if (round === this.#round) this.#body.setAttribute("aria-busy", "false");
    }
    this.#draw();
  }

  #ask(page) {
    const { load, sort, query } = this.#options;
    return load({ offset: page * PAGE, limit: PAGE, sort, query });
  }

  #keep(page, answer) {
    this.#pages.set(page, answer.items);
    this.#total = answer.total;
  }

  #settle(error) {
    const isEmpty = !error && this.#total === 0;
    const hasOldRows = error && this.#pages.size > 0 && this.#total > 0;
    this.#scroller.hidden = isEmpty || (error !== null && !hasOldRows);
    if (error) fill(this.#instead, problem(error, () => this.refresh()));
    else if (!isEmpty) fill(this.#instead);
    else fill(this.#instead, this.#options.empty?.(this.#options.query) ?? h("p", { class: "empty" }, "Nothing here."));
    const { noun = "row" } = this.#options;
    this.#foot.textContent = isEmpty || error ? "" : `${count(this.#total)} ${this.#total === 1 ? noun : `${noun}s`}`;
  }

  #window() {
    const height = this.#scroller.clientHeight || 600;
    const from = Math.max(0, Math.floor(this.#scroller.scrollTop / ROW_PX) - SPARE_ROWS);
    return [from, from + Math.ceil(height / ROW_PX) + 2 * SPARE_ROWS];
  }

  #drawSoon() {
    if (this.#isDrawDue) return;
    this.#isDrawDue = true;
    requestAnimationFrame(() => {
      this.#isDrawDue = false;
      this.#draw();
    });
  }

  #draw() {
    const [from, wantedTo] = this.#window();
    const to = Math.min(wantedTo, this.#total);
    for (const [index, shown] of this.#shown) {
      if (index >= from && index < to) continue;
      shown.row.remove();
      this.#shown.delete(index);
    }
    let after = this.#top;
    for (let index = from; index < to; index += 1) {
      const row = this.#rowAt(index);
      if (after.nextSibling !== row) after.after(row);
      after = row;
    }
    this.#first = from;
    this.#top.firstChild.style.height = `${from * ROW_PX}px`;
    this.#bottom.firstChild.style.height = `${Math.max(0, this.#total - to) * ROW_PX}px`;
    this.#table.setAttribute("aria-rowcount", String(this.#total + 1));
  }

  #rowAt(index) {
    const { columns, open, stamp, isSelected } = this.#options;
    const item = this.#itemAt(index);
    let shown = this.#shown.get(index);
    if (!shown) {
      const cells = columns.map((column) => h("td", { class: kindOf(column) }));
      const row = h("tr", { class: open ? "opens" : "", "aria-rowindex": index + 2, data: { index } }, cells);
      if (open) row.addEventListener("click", (event) => this.#clicked(event, index));
      shown = { row, cells, text: null };
      this.#shown.set(index, shown);
    }
    shown.row.tabIndex = index === this.#active ? 0 : -1;
    const text = item ? (stamp ?? JSON.stringify)(item) : "";
    shown.row.classList.toggle("selected", Boolean(item && isSelected?.(item)));
    if (shown.text !== text) {
      columns.forEach((column, at) => fill(shown.cells[at], item ? column.cell(item) : "…"));
      shown.row.classList.toggle("waiting", !item);
      shown.text = text;
    }
    return shown.row;
  }

  #itemAt(index) {
    const page = Math.floor(index / PAGE);
    const items = this.#pages.get(page);
    if (items === undefined) {
      this.#pages.set(page, []);
      this.#fetch(page);
      return null;
    }
    return items[index % PAGE] ?? null;
  }

  async #fetch(page) {
    const round = this.#round;
    try {
      const answer = await this.#ask(page);
      if (round === this.#round) this.#keep(page, answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#pages.delete(page);
      if (round === this.#round) this.#settle(error);
      return;
    }
    this.#drawSoon();
  }

  #clicked(event, index) {
    if (event.target.closest("a, button, input") || String(getSelection())) return;
    this.#active = index;
    const item = this.#itemAt(index);
    if (item) this.#options.open(item);
  }

  focus() {
    if (this.#total > 0) this.#move(this.#active);
  }

  #move(index) {
    this.#active = Math.max(0, Math.min(this.#total - 1, index));
    const top = this.#active * ROW_PX;
    const head = this.#table.tHead.offsetHeight;
    const { scrollTop, clientHeight } = this.#scroller;
    if (top < scrollTop) this.#scroller.scrollTop = top;
    else if (top + ROW_PX + head > scrollTop + clientHeight) this.#scroller.scrollTop = top + ROW_PX + head - clientHeight;
    this.#draw();
    const shown = this.#shown.get(this.#active);
    shown?.row.focus({ preventScroll: true });
    const item = this.#itemAt(this.#active);
    if (item) this.#options.moved?.(item);
  }

  #pressed(event) {
    if (event.target.closest("a, button, input") && event.key === "Enter") return;
    const screen = Math.max(1, Math.floor(this.#scroller.clientHeight / ROW_PX) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: screen, PageUp: -screen, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      event.preventDefault();
      this.#move(this.#active + steps[event.key]);
    } else if (event.key === "Enter" && this.#options.open) {
      const item = this.#itemAt(this.#active);
      if (item) this.#options.open(item);
    }
  }
}

/** Arrow down in the search box goes to the rows. */
export function searchInto(box, table) {
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      table.focus();
    } else if (event.key === "Escape") {
      event.target.blur();
    }
  });
  return box;
}
