// The page: hears of the job, keeps what is known of it, and shows that in all its parts.
import { Charts } from "./charts.js";
import { ask, enter, follow, takeDump } from "./connection.js";
import { Drawing, showLegend } from "./drawing.js";
import { RankTable } from "./table.js";
import { bytesText, durationText, elapsedText, element, percentText, rateText, setText } from "./text.js";

const [LINES_OF_EACH, LINES_OF_ALL, EVENTS] = [100, 300, 300];
const PLAY = 250; // milliseconds for a state of a replay

const at = (id) => document.getElementById(id);
const charts = new Charts(at("chart-rate"), at("chart-waiting"));
const drawing = new Drawing(at("drawing"), at("links"), at("rails"));
const table = new RankTable(at("ranks"), (number) => choose(chosen === number ? "all" : number));
let job = { hosts: [], columns: [] };
let ranks = [];
let ended = new Map(); // how processes have ended
let lines = new Map(); // the last ones of each process, and of "all"
let events = []; // the last ones
let chosen = "all"; // whose lines are shown
let over = false; // the job has ended
let mode = "live"; // or "replay"

// --- what is heard ---

function hear(kind, record) {
  if (kind === "story") {
    tellStory(record);
  } else if (kind === "job") {
    showJob(record);
  } else if (kind === "state") {
    showState(record);
    charts.add(record);
  } else if (kind === "lines") {
    addLines(record.lines, record.left_out);
    showLines();
  } else if (kind === "event") {
    addEvent(record);
    showEvents();
  } else if (kind === "end") {
    showEnd(record);
  }
}

/** Show the job as it is told to somebody who comes now; what was shown before is forgotten. */
function tellStory(story) {
  [ended, lines, events, over] = [new Map(), new Map(), [], false];
  at("verdict").hidden = at("problem").hidden = true;
  setStatus(mode, mode === "live" ? "good" : "");
  showJob(story.job);
  story.events.forEach(addEvent);
  addLines(story.lines, 0);
  if (story.state) showState(story.state);
  if (mode === "live") charts.begin(story.series, story.state ? story.state.job.unit : "step");
  showLines();
  showEvents();
  if (story.end) showEnd(story.end);
}

function showJob(record) {
  if (!record.columns) return;
  job = record;
  setText(at("pid"), String(job.pid));
  const [program, ...more] = job.command;
  setText(at("command"), [program.split("/").pop(), ...more].join(" "));
  at("command").title = job.command.join(" ");
  document.title = `DDL job ${job.pid}`;
  at("lines-note").hidden = !job.output_dir;
  setText(at("lines-note"), job.output_dir ? `What ranks print goes to files in ${job.output_dir} on their hosts.` : "");
}

function showState(state) {
  const known = state.ranks.map((row) => {
    const rank = Object.fromEntries(job.columns.map((name, place) => [name, row[place]]));
    for (const name of ["host", "state", "call", "call_state", "failure"]) rank[name] = state.texts[rank[name]];
    return { ...rank, ended: ended.get(rank.number) || "" };
  });
  ranks = withEnded(known);
  const links = state.links.map(([from, to, rate]) => [state.texts[from], state.texts[to], rate]);
  showTiles(state);
  table.show(ranks, chosen);
  const rails = (state.rails || []).map(([from, to, own, far, rate]) => ({
    ...{ from: state.texts[from], to: state.texts[to], own: state.texts[own], far: state.texts[far], rate },
  }));
  drawing.show(ranks, links, rails, job);
  showChoices();
}

/** Processes that have ended stay in the table, as they were last, or with nothing but their numbers. */
function withEnded(known) {
  const there = new Set(known.map((rank) => rank.number));
  const last = new Map(ranks.map((rank) => [rank.number, rank]));
  const empty = { host: "", pid: 0, state: "", steps: 0, operations: 0, per_second: null, waiting: null, late: 0, sent_bytes: 0 };
  const gone = [...ended].filter(([number]) => !there.has(number)).map(([number, how]) => {
    const before = last.get(number) || { ...empty, rank: number, number, call: "", call_state: "", awaited: null, failure: "" };
    return { ...before, per_second: null, waiting: null, late: 0, ended: how };
  });
  return [...known, ...gone].sort((a, b) => a.rank - b.rank || a.number - b.number);
}

function showTiles({ t, job: now }) {
  setText(at("tile-ranks"), String(now.ranks));
  setText(at("tile-elapsed"), elapsedText(t));
  setText(at("unit"), now.unit);
  setText(at("unit-per-second"), `${now.unit}s/s`);
  setText(at("tile-count"), String(now.count));
  setText(at("tile-rate"), rateText(now.per_second));
  setText(at("tile-waiting"), percentText(now.waiting));
  setText(at("tile-sent"), now.sent_per_second === null ? "–" : `${bytesText(now.sent_per_second)}/s`);
  setText(at("tile-late"), now.slowest === null ? "no rank" : `rank ${now.slowest}: ${durationText(now.late)}`);
}

function showEnd(record) {
  over = true;
  const well = record.status === 0;
  setStatus(`ended after ${elapsedText(record.t)} with status ${record.status}`, well ? "" : "bad");
  setText(at("tile-ranks"), "0");
  setText(at("tile-elapsed"), elapsedText(record.t));
  at("dump").hidden = true;
  ranks = ranks.map((rank) => ({ ...rank, ended: ended.get(rank.number) || "has ended with the job" }));
  table.show(ranks, chosen);
  if (drawing.last) drawing.show(ranks, [], [], job);
}

function setStatus(text, kind) {
  setText(at("connection"), text);
  at("connection").className = `pill ${kind}`;
}

// --- lines and events ---

function addLines(more, leftOut) {
  const keep = (key, most, text) => {
    const kept = lines.get(key) || [];
    kept.push(text);
    lines.set(key, kept.slice(-most));
  };
  more.forEach(([number, , text]) => {
    keep(number, LINES_OF_EACH, text);
    keep("all", LINES_OF_ALL, number >= 0 ? `[${number}] ${text}` : text);
  });
  if (leftOut) keep("all", LINES_OF_ALL, `… ${leftOut} lines are not shown: ranks print many at a time`);
}

function showLines() {
  const box = at("lines");
  const low = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
  setText(box, (lines.get(chosen) || []).join("\n"));
  if (low) box.scrollTop = box.scrollHeight;
}

function choose(number) {
  chosen = number;
  at("whose").value = String(number);
  table.show(ranks, chosen);
  showLines();
}

function showChoices() {
  const select = at("whose");
  // Where ranks come and go, a process keeps its number, and its rank may change.
  const name = (rank) => (rank.rank === rank.number ? `rank ${rank.rank}` : `rank ${rank.rank} (process ${rank.number})`);
  const wanted = [["all", "all ranks"], ...ranks.map((rank) => [String(rank.number), name(rank)])];
  const there = [...select.options];
  if (wanted.length === there.length && wanted.every(([, text], place) => there[place].textContent === text)) return;
  const options = wanted.map(([value, text]) => {
    const option = element("option", "", text);
    option.value = value;
    return option;
  });
  select.replaceChildren(...options);
  select.value = String(chosen);
}

function addEvent(record) {
  events.push(record);
  events = events.slice(-EVENTS);
  if (record.of === "exit") ended.set(record.number, record.text);
  if (record.of === "verdict") {
    at("verdict").hidden = false;
    setText(at("verdict"), record.text);
  }
}

function showEvents() {
  const items = [...events].reverse().map((record) => {
    const item = element("li");
    item.append(element("time", "", elapsedText(record.t)), record.text);
    return item;
  });
  at("events").replaceChildren(...(items.length ? items : [element("li", "", "nothing yet")]));
}

// --- the user ---

at("whose").addEventListener("change", (event) => choose(event.target.value === "all" ? "all" : Number(event.target.value)));

at("dump").addEventListener("click", async () => {
  const button = at("dump");
  button.disabled = true;
  at("dump-panel").hidden = false;
  setText(at("dump-text"), "The ranks are dumped, and their dumps are compared …");
  try {
    const { text, folder } = await takeDump();
    setText(at("dump-text"), folder ? `${text}\n\nThe dumps are in ${folder}` : text);
  } catch (error) {
    setText(at("dump-text"), `There is no dump: ${error.message}`);
  }
  button.disabled = false;
});

// --- live or from a file ---

async function replay() {
  const story = await ask("story");
  const slider = at("slider");
  at("replay").hidden = false;
  slider.max = String(story.times.length - 1);
  slider.value = slider.max;
  charts.begin(story.series, story.state.job.unit);
  const show = (moment, time) => {
    tellStory(moment);
    charts.setMark(time);
    setText(at("moment"), `${elapsedText(time)} of ${elapsedText(story.times[story.times.length - 1])}`);
    slider.setAttribute("aria-valuetext", elapsedText(time));
  };
  show(story, story.times[story.times.length - 1]);
  let wanted = 0;
  slider.addEventListener("input", async () => {
    const asked = ++wanted;
    const last = Number(slider.value) === story.times.length - 1;
    const time = story.times[Number(slider.value)];
    const moment = last ? story : await ask(`moment?t=${time}`);
    if (asked === wanted) show(moment, time); // else the user has moved on meanwhile
  });
  let timer = 0;
  at("play").addEventListener("click", () => {
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      setText(at("play"), "Play");
    };
    if (timer) return stop();
    if (slider.value === slider.max) slider.value = "0";
    setText(at("play"), "Pause");
    timer = setInterval(() => {
      slider.value = String(Number(slider.value) + 1);
      slider.dispatchEvent(new Event("input"));
      if (slider.value === slider.max) stop();
    }, PLAY);
  });
}

async function main() {
  showLegend(at("legend"));
  try {
    mode = await enter();
  } catch (error) {
    setStatus("no entry", "bad");
    at("problem").hidden = false;
    setText(at("problem"), `This page shows nothing: ${error.message}`);
    return;
  }
  at("save").hidden = false;
  at("dump").hidden = mode !== "live";
  if (mode === "replay") return replay();
  follow(hear, (seconds) => {
    if (!over) setStatus(`no connection to ddlrun for ${seconds} s; trying again`, "bad");
  });
}

main();
