// Numbers as people read them, in the words that ddl top uses, and what a rank does, in a word.

export function elapsedText(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (value) => String(value).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

export function durationText(seconds) {
  const [unit, scale] = seconds >= 1 ? ["s", 1] : seconds >= 1e-3 ? ["ms", 1e-3] : ["µs", 1e-6];
  return `${digits(seconds / scale, 2)}\u00a0${unit}`; // in a line with its unit
}

export function bytesText(count) {
  const [unit, size] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find((entry) => count >= entry[1]) || ["bytes", 1];
  return `${digits(count / size, 3)} ${unit}`;
}

export function rateText(value) {
  return value === null || value === undefined ? "–" : digits(value, 3);
}

export function percentText(part) {
  return part === null || part === undefined ? "–" : `${Math.round(100 * part)} %`;
}

function digits(value, most) {
  return value >= 10 ** (most - 1) || value === 0 ? value.toFixed(0) : String(Number(value.toPrecision(most)));
}

/** The kinds of ranks, with a sign for those who cannot tell the colours, and what it means. */
export const KINDS = {
  running: ["", "runs"],
  waiting: ["…", "waits for another rank"],
  late: ["L", "comes late"],
  stopped: ["‖", "is stopped"],
  failed: ["!", "has failed"],
  ended: ["×", "has ended"],
};

export function kindOf(rank) {
  if (rank.ended) return "ended";
  if (rank.failure) return "failed";
  if (rank.state.startsWith("is ")) return "stopped";
  if (rank.late) return "late";
  return isWaiting(rank) ? "waiting" : "running";
}

export function isWaiting(rank) {
  return rank.call && rank.awaited !== null && !["ended", "failed"].includes(rank.call_state);
}

export function operationText(rank) {
  if (rank.ended || rank.failure) return rank.ended || rank.failure;
  return isWaiting(rank) ? `${rank.call}, waits for rank ${rank.awaited}` : rank.call;
}

/** Make an element with a class and a text, which is never read as HTML. */
export function element(name, className = "", text = "") {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

/** Set a text only where it has changed: the browser then has nothing to lay out anew. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
