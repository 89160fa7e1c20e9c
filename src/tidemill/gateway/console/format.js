// Numbers, sizes and times as people read them. "–" stands for what the cluster does not tell.

const NONE = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const tenths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const SIZES = ["B", "KB", "MB", "GB", "TB", "PB"];
const SHORT = ["", "k", "M", "G", "T"];
const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

export function count(value) {
  return isMissing(value) ? NONE : whole.format(value);
}

function scaled(value, base, units) {
  let step = 0;
  while (Math.abs(value) >= base && step < units.length - 1) {
    value /= base;
    step += 1;
  }
  return [value, units[step]];
}

/** 1,536 -> "1.5 KB", by 1,024. */
export function bytes(value) {
  if (isMissing(value)) return NONE;
  const [number, unit] = scaled(value, 1024, SIZES);
  return `${unit === "B" || number >= 100 ? whole.format(number) : tenths.format(number)} ${unit}`;
}

export function bytesPerSecond(value) {
  return isMissing(value) ? NONE : `${bytes(value)}/s`;
}

/** For axes and dense cells: 12,345 -> "12.3k". */
export function compact(value) {
  if (isMissing(value)) return NONE;
  const [number, unit] = scaled(value, 1000, SHORT);
  return `${number >= 100 ? whole.format(number) : short.format(number)}${unit}`;
}

export function perSecond(value) {
  if (isMissing(value)) return NONE;
  return `${Math.abs(value) < 10 ? short.format(value) : whole.format(value)}/s`;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function minute(ms) {
  return clock(ms).slice(0, 5);
}

/** Local time to the millisecond, sortable by eye. */
export function timestamp(ms) {
  if (isMissing(ms) || ms < 0) return NONE;
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${clock(ms)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** Without the day when it is today. */
export function nearTime(ms, now = Date.now()) {
  const [day, time] = timestamp(ms).split(" ");
  return time === undefined || day === timestamp(now).split(" ")[0] ? (time ?? day) : `${day} ${time.slice(0, 8)}`;
}

export function utc(ms) {
  return isMissing(ms) || ms < 0 ? "" : new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
}

/** "2026-11-16T08:12:58.120" as <input type="datetime-local"> wants it. */
export function inputTime(ms) {
  return timestamp(ms).replace(" ", "T");
}

export function duration(ms) {
  if (isMissing(ms)) return NONE;
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function ago(ms, now = Date.now()) {
  if (isMissing(ms) || ms < 0) return NONE;
  const past = now - ms;
  if (Math.abs(past) < 1000) return "now";
  return past > 0 ? `${duration(past)} ago` : `in ${duration(-past)}`;
}

export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}
