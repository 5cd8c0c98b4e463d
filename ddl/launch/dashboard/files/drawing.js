// Hosts with their ranks, and what goes from host to host: lines between a few hosts, a map of many.
import { bytesText, element, kindOf, KINDS, setText } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const [FEW, FEW_ON_A_PHONE] = [8, 4]; // hosts between which lines can be told apart
const [MARK, GAP, MOST_MARKS] = [14, 3, 32];
const LABELS = 12; // of lines: more would cover one another
const TABLE = 8; // rows about who sends most
const RAIL = 9; // from the line of a rail to that of the next one

function svg(name, attributes, text = "") {
  const node = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
  if (text) node.textContent = text;
  return node;
}

/** The ranks of each host, in the order in which the user has named the hosts. */
function byHost(ranks, named) {
  const hosts = new Map(named.map((name) => [name, []]));
  ranks.forEach((rank) => hosts.has(rank.host) ? hosts.get(rank.host).push(rank) : hosts.set(rank.host, [rank]));
  return hosts;
}

function showRows(table, rows) {
  table.hidden = !rows.length;
  table.tBodies[0].replaceChildren(...rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((text) => element("td", "", text)));
    return row;
  }));
}

export class Drawing {
  constructor(box, table, railTable) {
    this.box = box;
    this.table = table;
    this.railTable = railTable;
    this.cards = new Map(); // by host, where there are many
    this.last = null;
    new ResizeObserver(() => this.last && this.show(...this.last)).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.last && this.show(...this.last));
  }

  /** `links`: [from, to, bytes per second] by names; `rails`: the same of each rail, where there are several. */
  show(ranks, links, rails, job) {
    this.last = [ranks, links, rails, job];
    const hosts = byHost(ranks, job.hosts);
    const between = links.filter(([from, to]) => from !== to).sort((a, b) => b[2] - a[2]);
    const width = this.box.clientWidth;
    if (hosts.size <= (width < 480 ? FEW_ON_A_PHONE : FEW)) {
      this.box.replaceChildren(drawFew(hosts, between, links, rails, width, job.hosts_per_rack));
      this.cards.clear();
    } else {
      this.showMany(hosts, between, width, job.hosts_per_rack);
    }
    showRows(this.table, between.slice(0, TABLE).map(([from, to, rate]) => [from, to, `${bytesText(rate)}/s`]));
    showRows(this.railTable, rails.slice(0, 2 * TABLE).map((rail) => [
      ...[rail.from, rail.to, `${rail.own} to ${rail.far}`, `${bytesText(rail.rate)}/s`],
    ]));
  }

  showMany(hosts, between, width, perRack) {
    const names = [...hosts.keys()];
    if (names.join("\n") !== [...this.cards.keys()].join("\n")) this.buildCards(names, perRack);
    for (const [name, ranks] of hosts) {
      const card = this.cards.get(name);
      while (card.children.length > ranks.length) card.lastChild.remove();
      ranks.forEach((rank, at) => {
        const mark = card.children[at] || card.appendChild(element("span", "mark"));
        const kind = kindOf(rank);
        if (mark.className !== `mark ${kind}`) mark.className = `mark ${kind}`;
        setText(mark, KINDS[kind][0]);
        mark.title = `rank ${rank.rank} ${KINDS[kind][1]}`;
      });
    }
    drawMap(this.map, names, between, width);
    this.mapNote.textContent = between.length
      ? `Each row sends to each column, in the order above. The strongest field: ${bytesText(between[0][2])}/s.`
      : "Nothing goes from host to host now.";
  }

  buildCards(names, perRack) {
    this.cards.clear();
    const all = element("div", "cards");
    const racks = perRack > 0 ? Math.ceil(names.length / perRack) : 1;
    for (let rack = 0; rack < racks; rack++) {
      const hosts = element("div", "hosts");
      names.slice(rack * (perRack || names.length), (rack + 1) * (perRack || names.length)).forEach((name) => {
        const card = element("div", "host");
        const title = element("b", "", name);
        title.title = name;
        const marks = element("div", "marks");
        card.append(title, marks);
        hosts.append(card);
        this.cards.set(name, marks);
      });
      if (racks === 1) {
        all.append(hosts);
      } else {
        const frame = element("fieldset", "rack");
        frame.append(element("legend", "", `rack ${rack}`), hosts);
        all.append(frame);
      }
    }
    all.tabIndex = 0;
    all.setAttribute("role", "region");
    all.setAttribute("aria-label", "hosts and their ranks; the table of ranks has the same");
    this.map = element("canvas");
    this.map.setAttribute("role", "img");
    this.map.setAttribute("aria-label", "what each host sends to each other one; the table below has the most");
    this.mapNote = element("p", "note");
    this.box.replaceChildren(all, this.map, this.mapNote);
  }
}

/** A box for each host around an ellipse, and a line for each direction, and rail, in which something is sent. */
function drawFew(hosts, between, links, rails, width, perRack) {
  const wide = width < 480 ? 118 : 152; // of a box
  const inARow = Math.floor((wide - 16 + GAP) / (MARK + GAP));
  const rows = Math.max(1, ...[...hosts.values()].map((ranks) => Math.ceil(Math.min(ranks.length, MOST_MARKS) / inARow)));
  const high = 42 + rows * (MARK + GAP);
  const size = [wide, high];
  const count = hosts.size;
  const height = count === 1 ? high + 20 : count === 2 ? high + 40 : Math.max(2 * high + 110, count > 4 ? 380 : 0);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  const labelled = "hosts, their ranks, and what is sent between hosts; the tables have the same";
  picture.setAttribute("aria-label", labelled);
  const places = new Map();
  [...hosts.keys()].forEach((name, at) => {
    const turn = count === 2 ? Math.PI * (1 + at) : (2 * Math.PI * (at - (count === 4 ? 0.5 : 0))) / count - Math.PI / 2;
    const [rx, ry] = [(width - wide) / 2 - 6, (height - high) / 2 - 6];
    const far = count === 4 ? Math.SQRT2 : 1; // to the corners
    const x = count === 1 ? width / 2 : width / 2 + Math.min(rx, 300) * far * Math.cos(turn);
    const y = count <= 2 ? height / 2 : height / 2 + ry * far * Math.sin(turn);
    places.set(name, [Math.min(Math.max(x, wide / 2 + 2), width - wide / 2 - 2), y]);
  });
  const most = between.length ? between[0][2] : 1;
  const labels = [];
  between.forEach(([from, to, rate], at) => {
    if (!places.has(from) || !places.has(to)) return;
    const over = rails.filter((rail) => rail.from === from && rail.to === to);
    const outermost = 7 + RAIL * Math.max(0, over.length - 1);
    const line = lineBetween(places.get(from), places.get(to), size, count === 2 ? 0.5 : 0.4, outermost);
    const thickOf = (part) => 1.5 + 4.5 * Math.max(0, 1 + Math.log10(Math.max(part, 1) / most) / 3);
    (over.length ? over : [{ rate }]).forEach((rail, number) => {
      const beside = lineBetween(places.get(from), places.get(to), size, 0.5, 7 + RAIL * number);
      const [{ x1, y1, x2, y2 }, thick] = [beside, thickOf(rail.rate)];
      const way = svg("line", { class: rail.rate ? "link" : "link silent", x1, y1, x2, y2, "stroke-width": thick });
      if (over.length) way.append(svg("title", {}, `${rail.own} to ${rail.far}: ${bytesText(rail.rate)}/s`));
      picture.append(way, svg("polygon", { class: "head", points: beside.head(thick) }));
    });
    if (at < LABELS) labels.push(svg("text", { class: "label", ...line.label }, `${bytesText(rate)}/s`));
  });
  const inside = new Map(links.filter(([from, to]) => from === to).map(([from, , rate]) => [from, rate]));
  [...hosts].forEach(([name, ranks], at) => {
    picture.append(hostBox(name, ranks, places.get(name), size, inARow, inside.get(name) || 0, perRack ? Math.floor(at / perRack) : -1));
  });
  picture.append(...labels);
  return picture;
}

/** From the edge of a box to that of another one, to the right of the way back. */
function lineBetween([ax, ay], [bx, by], [wide, high], middle, aside = 7) {
  const length = Math.hypot(bx - ax, by - ay) || 1;
  const [dx, dy] = [(bx - ax) / length, (by - ay) / length];
  const edge = Math.min(wide / 2 / Math.abs(dx || 1e-9), high / 2 / Math.abs(dy || 1e-9)) + 3;
  const [sx, sy] = [-dy * aside, dx * aside];
  const [x1, y1, tx, ty] = [ax + dx * edge + sx, ay + dy * edge + sy, bx - dx * edge + sx, by - dy * edge + sy];
  const [x2, y2] = [tx - dx * 8, ty - dy * 8];
  const head = (thick) => {
    const half = 3 + thick;
    return `${tx},${ty} ${x2 - dy * half},${y2 + dx * half} ${x2 + dy * half},${y2 - dx * half}`;
  };
  // Not in the middle if there are more: where lines cross, labels would cover one another.
  const steep = Math.abs(dy) > Math.abs(dx); // then the label stands beside the line, else above or below
  const [x, y] = [x1 + (x2 - x1) * middle + (steep ? 3 * Math.sign(sx) : 0), y1 + (y2 - y1) * middle + 4 + (steep ? 0 : 13 * Math.sign(sy))];
  return { x1, y1, x2, y2, head, label: { x, y, "text-anchor": !steep ? "middle" : sx > 0 ? "start" : "end" } };
}

function hostBox(name, ranks, [x, y], [wide, high], inARow, inside, rack) {
  const group = svg("g", { transform: `translate(${x - wide / 2} ${y - high / 2})` });
  group.append(svg("rect", { class: "box", width: wide, height: high, rx: 6 }));
  const most = Math.floor((wide - 16) / 8); // letters
  const title = svg("text", { x: 8, y: 16, "font-weight": "bold" }, name.length > most ? `${name.slice(0, most - 1)}…` : name);
  title.append(svg("title", {}, name));
  group.append(title);
  ranks.slice(0, MOST_MARKS).forEach((rank, at) => {
    const kind = kindOf(rank);
    const [left, top] = [8 + (at % inARow) * (MARK + GAP), 23 + Math.floor(at / inARow) * (MARK + GAP)];
    const mark = svg("rect", { class: `m ${kind}`, x: left, y: top, width: MARK, height: MARK, rx: 3 });
    mark.append(svg("title", {}, `rank ${rank.rank} ${KINDS[kind][1]}`));
    const sign = KINDS[kind][0] || (rank.rank < 100 ? String(rank.rank) : "");
    group.append(mark, svg("text", { class: "in-mark", x: left + MARK / 2, y: top + 10.5, "text-anchor": "middle" }, sign));
  });
  const more = ranks.length > MOST_MARKS ? `${ranks.length} ranks` : rack >= 0 ? `rack ${rack}` : "";
  const note = [more, inside ? `inside ${bytesText(inside)}/s` : ""].filter(Boolean).join(", ");
  group.append(svg("text", { class: "soft", x: 8, y: high - 6 }, note));
  return group;
}

/** A field for each pair of hosts; the darker, the more is sent. */
function drawMap(canvas, names, between, width) {
  const cell = Math.max(3, Math.min(16, Math.floor(Math.min(width, 320) / names.length)));
  const size = cell * names.length;
  if (canvas.width !== size) canvas.width = canvas.height = size;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  pen.globalAlpha = 1;
  pen.fillStyle = style.getPropertyValue("--paper");
  pen.fillRect(0, 0, size, size);
  pen.fillStyle = style.getPropertyValue("--line");
  names.forEach((_, at) => pen.fillRect(at * cell, at * cell, cell - 1, cell - 1));
  pen.fillStyle = style.getPropertyValue("--accent");
  const place = new Map(names.map((name, at) => [name, at]));
  const most = between.length ? between[0][2] : 1;
  between.forEach(([from, to, rate]) => {
    if (!place.has(from) || !place.has(to)) return;
    pen.globalAlpha = 0.12 + 0.88 * Math.max(0, 1 + Math.log10(rate / most) / 3);
    pen.fillRect(place.get(to) * cell, place.get(from) * cell, cell - 1, cell - 1);
  });
}

/** The list of what the colours mean. */
export function showLegend(list) {
  Object.entries(KINDS).forEach(([kind, [mark, meaning]]) => {
    const entry = element("li");
    const text = element("span", `state ${kind}`, meaning);
    text.dataset.mark = mark;
    entry.append(text);
    list.append(entry);
  });
}
