// The table of ranks. Rows stay from second to second, and only cells that have changed are touched.
import { bytesText, durationText, element, kindOf, KINDS, operationText, percentText, rateText, setText } from "./text.js";

const COLUMNS = [
  ["rank", "rank", (rank) => String(rank.rank)],
  ["host", "host", (rank) => rank.host],
  ["pid", "pid", (rank) => (rank.pid ? String(rank.pid) : "–")],
  ["state", "state", (rank) => (kindOf(rank) === "running" || kindOf(rank) === "waiting" ? rank.state : KINDS[kindOf(rank)][1])],
  ["steps", "step", (rank) => (rank.steps ? String(rank.steps) : "–")],
  ["operations", "operations", (rank) => String(rank.operations)],
  ["per_second", "per s", (rank) => rateText(rank.per_second)],
  ["waiting", "waiting", (rank) => percentText(rank.waiting)],
  ["late", "late", (rank) => (rank.late ? durationText(rank.late) : "–")],
  ["sent_bytes", "sent", (rank) => bytesText(rank.sent_bytes)],
  ["call", "last operation", operationText],
];
const TEXTS = ["host", "state", "call"];

export class RankTable {
  /** `choose` is called with the number of a process whose button was pressed. */
  constructor(table, choose) {
    this.body = table.tBodies[0];
    this.choose = choose;
    this.rows = new Map(); // by process
    this.sorting = { column: "rank", down: false };
    this.ranks = [];
    this.headings = COLUMNS.map(([name, title]) => {
      const heading = element("th", `c-${name}${TEXTS.includes(name) || name === "rank" ? "" : " number"}`);
      heading.scope = "col";
      const button = element("button", "", title);
      button.type = "button";
      button.addEventListener("click", () => this.sortBy(name));
      heading.append(button);
      table.tHead.rows[0].append(heading);
      return heading;
    });
    this.showSorting();
  }

  sortBy(column) {
    const again = this.sorting.column === column;
    this.sorting = { column, down: again ? !this.sorting.down : !TEXTS.includes(column) && column !== "rank" };
    this.showSorting();
    this.show(this.ranks, this.chosen);
  }

  showSorting() {
    COLUMNS.forEach(([name], at) => {
      const sorted = name === this.sorting.column ? (this.sorting.down ? "descending" : "ascending") : "none";
      this.headings[at].setAttribute("aria-sort", sorted);
    });
  }

  show(ranks, chosen) {
    this.ranks = ranks;
    this.chosen = chosen;
    const { column, down } = this.sorting;
    const value = (rank) => (TEXTS.includes(column) ? String(rank[column]) : (rank[column] ?? -1));
    const sorted = [...ranks].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1) || a.rank - b.rank;
    });
    const known = new Set(ranks.map((rank) => rank.number));
    for (const [number, row] of this.rows) {
      if (!known.has(number)) {
        row.node.remove();
        this.rows.delete(number);
      }
    }
    sorted.forEach((rank, at) => {
      const row = this.rows.get(rank.number) || this.newRow(rank.number);
      this.fill(row, rank);
      if (this.body.rows[at] !== row.node) this.body.insertBefore(row.node, this.body.rows[at] || null);
    });
  }

  newRow(number) {
    const node = element("tr");
    const cells = COLUMNS.map(([name]) => {
      const cell = element("td", `c-${name}${TEXTS.includes(name) || name === "rank" ? "" : " number"}`);
      node.append(cell);
      return cell;
    });
    const button = element("button");
    button.type = "button";
    button.addEventListener("click", () => this.choose(number));
    cells[0].append(button);
    const state = element("span", "state");
    cells[3].append(state);
    cells[0] = button;
    cells[3] = state;
    const row = { node, cells };
    this.rows.set(number, row);
    return row;
  }

  fill(row, rank) {
    COLUMNS.forEach(([, , text], at) => setText(row.cells[at], text(rank)));
    const kind = kindOf(rank);
    const [button, , , state] = row.cells;
    if (state.className !== `state ${kind}`) {
      state.className = `state ${kind}`;
      state.dataset.mark = KINDS[kind][0];
    }
    const pressed = String(rank.number === this.chosen);
    if (button.getAttribute("aria-pressed") !== pressed) {
      button.setAttribute("aria-pressed", pressed);
      button.setAttribute("aria-label", `rank ${rank.rank}: show its lines`);
    }
  }
}
