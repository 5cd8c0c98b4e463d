// The curves of the whole time, by uPlot (uplot/, MIT licence), which page.html loads before this.
import { bytesText, elapsedText, percentText, rateText } from "./text.js";

const HEIGHT = 150;
const POWERS = Array.from({ length: 60 }, (_, power) => 2 ** power); // between marks of an axis of bytes

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Two charts: how fast the job is, and how long its ranks wait. */
export class Charts {
  constructor(rateBox, waitingBox) {
    this.boxes = [rateBox, waitingBox];
    this.data = [[], [], [], []]; // times, steps per second, waiting, bytes per second
    this.unit = "step";
    this.mark = null; // the time that a replay shows
    this.plots = [];
    new ResizeObserver(() => this.resize()).observe(rateBox);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
  }

  /** Show the curves so far, in place of all that was there. */
  begin(series, unit) {
    this.data = series.map((curve) => [...curve]);
    this.unit = unit;
    this.build();
  }

  add(state) {
    const { job } = state;
    [state.t, job.per_second, job.waiting, job.sent_per_second].forEach((value, at) => this.data[at].push(value));
    if (this.data[0].length > 5000) this.data = this.data.map((curve) => curve.filter((_, at) => at % 2));
    if (job.unit !== this.unit) {
      this.unit = job.unit;
      this.build();
    } else {
      this.show();
    }
  }

  setMark(time) {
    this.mark = time;
    this.plots.forEach((plot) => plot.redraw(false));
  }

  show() {
    const [times, rates, waiting, sent] = this.data;
    if (this.plots.length) {
      this.plots[0].setData([times, rates, sent]);
      this.plots[1].setData([times, waiting]);
    }
  }

  resize() {
    const width = this.boxes[0].clientWidth;
    this.plots.forEach((plot) => plot.width !== width && plot.setSize({ width, height: HEIGHT }));
  }

  build() {
    this.plots.forEach((plot) => plot.destroy());
    const rate = [
      { label: `${this.unit}s/s`, stroke: color("--accent"), width: 2, value: (_, value) => rateText(value) },
      { label: "sent per second", scale: "bytes", stroke: color("--late"), width: 1.5, value: (_, value) => bytesPerSecond(value) },
    ];
    const waiting = [{ label: "waiting", stroke: color("--stopped"), width: 2, value: (_, value) => percentText(value) }];
    const ofBytes = { ...this.axis((value) => bytesText(value)), scale: "bytes", side: 1, size: 68, incrs: POWERS, grid: { show: false } };
    this.plots = [
      this.plot(this.boxes[0], rate, [this.axis(rateText), ofBytes], { y: { range: fromZero }, bytes: { range: fromZero } }),
      this.plot(this.boxes[1], waiting, [this.axis(percentText)], { y: { range: [0, 1] } }),
    ];
    this.show();
  }

  plot(box, series, axes, scales) {
    const width = box.clientWidth || 300;
    const options = {
      ...{ width, height: HEIGHT, cursor: { y: false }, scales: { x: { time: false }, ...scales } },
      series: [{ label: "time", value: (_, value) => (value === null ? "–" : elapsedText(value)) }, ...series.map(withoutPoints)],
      axes: [this.axis(elapsedText, 75), ...axes],
      hooks: { draw: [(plot) => this.drawMark(plot)] },
    };
    return new uPlot(options, [[], ...series.map(() => [])], box);
  }

  axis(text, space = 30) {
    const line = { stroke: color("--line"), width: 1 };
    return { stroke: color("--soft"), grid: line, ticks: line, space, size: space === 75 ? 34 : 52, values: (_, all) => all.map(text) };
  }

  drawMark(plot) {
    if (this.mark === null) return;
    const x = plot.valToPos(this.mark, "x", true);
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = color("--ink");
    ctx.lineWidth = 2;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }
}

function withoutPoints(curve) {
  return { ...curve, points: { show: false } };
}

function fromZero(_, low, high) {
  return [0, high > 0 ? high * 1.1 : 1];
}

function bytesPerSecond(value) {
  return value === null || value === undefined ? "–" : bytesText(value);
}
