"use strict";
// Draws the packs of the page: bands of members, rates, the GPU. All texts are set as text.
(() => {
  const root = document.documentElement;
  const packs = JSON.parse(document.getElementById("drawing").textContent).packs;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const LIGHT = ["#0b5cad", "#b35900", "#0b6b3a", "#a3238e", "#6639ba", "#946200", "#00687a", "#b42318"];
  const DARK = ["#79b8ff", "#f0a04b", "#6fdd9b", "#f29be3", "#b79cf2", "#e3c05b", "#5fd0e4", "#ff8f84"];
  const DASHES = [[], [8, 4], [2, 3]];
  const TICKS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 604800];
  let printing = false;
  const isDark = () => !printing && (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const colour = (i) => (isDark() ? DARK : LIGHT)[i % LIGHT.length];
  // The colours of the paper hold only after the pictures were drawn for it.
  const PAPER = { "--back": "#ffffff", "--soft": "#444444", "--line": "#bbbbbb" };
  const look = (name) => (printing ? PAPER[name] : getComputedStyle(root).getPropertyValue(name).trim());

  const pad = (n) => String(n).padStart(2, "0");
  const span = (s) => {
    const whole = Math.round(s);
    const [h, m] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
    return h ? `${h}:${pad(m)}:${pad(whole % 60)}` : `${m}:${pad(whole % 60)}`;
  };
  const figure = (v) => (v === null || v === undefined ? "unknown" : Number(v.toPrecision(3)).toString());

  const make = (tag, parent, text, name) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (name) node.className = name;
    if (parent) parent.append(node);
    return node;
  };

  const charts = [];
  const filtered = () => (document.getElementById("filter") || { value: "" }).value.trim().toLowerCase();
  const isShown = (member) => {
    const words = filtered();
    const row = document.querySelector(`#table tr[data-id="${CSS.escape(member.id)}"]`);
    const text = row ? row.dataset.text : `${member.id} ${member.label} ${member.state}`;
    return !words || text.toLowerCase().includes(words);
  };

  // One pack: its charts share the time that is shown and the moment that is pointed at.
  class PackCharts {
    constructor(pack, place, box) {
      this.pack = pack;
      this.box = box;
      this.range = [0, Math.max(pack.length, pack.step)];
      this.x = Array.from({ length: pack.count }, (_, i) => (i + 0.5) * pack.step);
      this.sync = uPlot.sync(`pack-${place}`);
      this.plots = [];
      this.figures = make("div", box);
      this.shown = box.querySelector(".shown");
      for (const button of box.querySelectorAll("button")) {
        button.addEventListener("click", () => this.move(button.dataset.do));
      }
    }

    move(what) {
      const whole = this.pack.length || this.pack.step;
      let [low, high] = this.range;
      const size = high - low;
      if (what === "in") [low, high] = [low + size / 4, high - size / 4];
      if (what === "out") [low, high] = [low - size / 2, high + size / 2];
      if (what === "left") [low, high] = [low - size / 2, high - size / 2];
      if (what === "right") [low, high] = [low + size / 2, high + size / 2];
      if (what === "all") [low, high] = [0, whole];
      const kept = Math.min(Math.max(high - low, 2 * this.pack.step), whole);
      low = Math.min(Math.max(0, low), whole - kept);
      this.show(low, low + kept);
    }

    show(low, high) {
      this.range = [low, high];
      for (const plot of this.plots) plot.setScale("x", { min: low, max: high });
      this.tell();
    }

    tell() {
      const [low, high] = this.range;
      this.shown.textContent = `Shown: ${span(low)} to ${span(high)} of ${span(this.pack.length)}`;
      this.box.dataset.shown = `${low.toFixed(1)}-${high.toFixed(1)}`;
    }

    draw() {
      for (const plot of this.plots) plot.destroy();
      this.plots = [];
      this.figures.replaceChildren();
      const members = this.pack.members.map((m, i) => ({ ...m, place: i })).filter(isShown);
      this.drawBands(members);
      this.drawRates(members);
      const gpu = this.pack.gpu;
      const share = (name) => gpu[name] && scale(gpu[name], 100);
      this.drawLines("GPU activity", "% of the whole GPU; utilization says only that some kernel ran", [
        ["SM", share("sm_active"), 0], ["tensor", share("tensor_active"), 3],
        ["DRAM", share("dram_active"), 2], ["utilization", share("utilization"), 1],
      ], { unit: "%", low: 0, high: 100 });
      const limit = this.pack.gpu_memory_mb;
      this.drawLines("GPU memory", limit ? `GB in use, of ${figure(limit / 1024)}` : "GB in use", [
        ["in use", gpu.gpu_memory_mb && scale(gpu.gpu_memory_mb, 1 / 1024), 0],
      ], { unit: "GB", low: 0 });
      const walls = (name, factor) => (this.pack.instances || []).map((one, i) => [one.label, one.gpu[name] && scale(one.gpu[name], factor), i]);
      this.drawLines("SM activity by instance", "% of the instance's own SMs", walls("sm_active", 100), { unit: "%", low: 0, high: 100 });
      this.drawLines("GPU memory by instance", "GB in use; no instance gets more than it has", walls("gpu_memory_mb", 1 / 1024), { unit: "GB", low: 0 });
      this.drawLines("Power", this.pack.gpus > 1 ? "W of its GPUs together" : "W of the whole GPU", [["power", gpu.power_w, 1]], { unit: "W", low: 0 });
      this.tell();
    }

    figure(title, about) {
      const part = make("div", this.figures, undefined, "figure");
      make("h3", part, title);
      const told = make("p", part, about);
      const chart = make("div", part, undefined, "chart");
      chart.tabIndex = 0;
      chart.setAttribute("role", "img");
      chart.addEventListener("keydown", (event) => {
        const known = { "+": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all" };
        if (known[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
          event.preventDefault();
          this.move(known[event.key]);
        }
      });
      return { part, told, chart, about };
    }

    plot(made, options, data) {
      const axis = { stroke: look("--soft"), grid: { stroke: look("--line"), width: 1 }, ticks: { stroke: look("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
      const width = Math.max(260, this.box.clientWidth);
      const plot = new uPlot({
        width, height: options.height, legend: { show: false },
        scales: { x: { time: false, min: this.range[0], max: this.range[1] }, ...options.scales },
        axes: [
          { ...axis, values: (_, at) => at.map(span), space: 70, incrs: TICKS_S },
          { ...axis, size: 62, ...options.axis },
        ],
        cursor: { sync: { key: this.sync.key, scales: ["x", null] }, drag: { x: true, y: false, setScale: false }, points: { show: options.points !== false } },
        series: [{}, ...options.series],
        bands: options.bands || [],
        hooks: {
          setSelect: [(u) => {
            if (u.select.width < 4) return;
            const low = Math.max(0, u.posToVal(u.select.left, "x"));
            const high = Math.min(this.pack.length, u.posToVal(u.select.left + u.select.width, "x"));
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            if (high - low >= this.pack.step) this.show(low, high);
          }],
          setCursor: [(u) => { made.told.textContent = options.tell(u) || made.about; }],
          ...options.hooks,
        },
      }, data, made.chart);
      plot.over.addEventListener("dblclick", () => this.move("all"));
      this.plots.push(plot);
      return plot;
    }

    drawBands(members) {
      const names = { 0: "runs", 1: "paused to measure others", 2: "parked", 3: "at the door" };
      const made = this.figure("Members on the GPU", "Each bar is a member, from its start to its end; lighter where it was paused or parked.");
      const said = members.slice(0, 12).map((m) => {
        const runs = m.bands.filter((band) => band[2] === 0);
        return runs.length ? `${m.id} from ${span(runs[0][0])} to ${span(runs[runs.length - 1][1])}` : `${m.id} never ran`;
      });
      made.chart.setAttribute("aria-label", `Time line. ${said.join("; ")}. The list below has all.`);
      const row = members.length > 24 ? 14 : 22;
      const draw = (u) => {
        const c = u.ctx;
        const ratio = uPlot.pxRatio;
        const each = u.bbox.height / Math.max(1, members.length);
        c.save();
        c.beginPath();
        c.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
        c.clip();
        members.forEach((m, i) => {
          const top = u.bbox.top + i * each + 0.12 * each;
          const height = 0.76 * each;
          for (const [from, to, kind] of m.bands) {
            const left = u.valToPos(from, "x", true);
            const width = Math.max(ratio, u.valToPos(to, "x", true) - left);
            if (kind !== 0) {
              c.fillStyle = look("--back");
              c.fillRect(left, top, width, height);
            }
            c.globalAlpha = kind === 0 ? 1 : kind === 1 ? 0.55 : 0.25;
            c.fillStyle = colour(m.place);
            c.fillRect(left, top, width, height);
            c.globalAlpha = 1;
          }
          const runs = m.bands.filter((band) => band[2] === 0);
          if (runs.length && row > 16) {
            // The name stands in its bar where there is room, else after it.
            const left = Math.max(u.bbox.left, u.valToPos(runs[0][0], "x", true)) + 5 * ratio;
            c.font = `${11 * ratio}px system-ui, sans-serif`;
            c.textBaseline = "middle";
            c.textAlign = "left";
            c.fillStyle = look("--back");
            c.save();
            c.beginPath();
            const end = u.valToPos(runs[0][1], "x", true);
            c.rect(left, top, Math.max(0, end - left), height);
            c.clip();
            c.fillText(m.label, left, top + height / 2);
            c.restore();
          }
        });
        c.restore();
      };
      this.plot(made, {
        height: members.length * row + 66,
        scales: { y: { range: [0, Math.max(1, members.length)], dir: -1 } },
        axis: {
          splits: () => members.map((_, i) => i + 0.5), grid: { show: false }, ticks: { show: false },
          values: () => members.map((m) => m.id),
        },
        series: [{ paths: () => null, points: { show: false } }],
        points: false,
        hooks: { draw: [draw] },
        tell: (u) => {
          const at = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null;
          if (at === null) return "";
          const there = members.filter((m) => m.bands.some((b) => b[2] === 0 && b[0] <= at && at <= b[1]));
          const words = there.slice(0, 8).map((m) => {
            const kinds = m.bands.filter((b) => b[0] <= at && at <= b[1]).map((b) => b[2]);
            const kind = Math.max(...kinds);
            return kind ? `${m.id} (${names[kind]})` : m.id;
          });
          return `${span(at)}: ${words.join(", ") || "no member"}${there.length > 8 ? `, and ${there.length - 8} more` : ""}`;
        },
      }, [this.x, this.x.map(() => null)]);
    }

    drawRates(members) {
      const known = members.filter((m) => m.rate);
      if (!known.length) return;
      // Against alone where that is known of all; else as steps per second.
      const against = known.every((m) => m.alone);
      const bounds = [...new Set(known.map((m) => m.accepted).filter((b) => b))];
      const lines = known.map((m) => [m.id, against ? scale(m.rate, 1 / m.alone) : m.rate, m.place]);
      const about = against
        ? `1 is its rate alone${bounds.length === 1 ? `; below the dashed line (${figure(1 / bounds[0])}) it is slower than accepted` : ""}`
        : "Steps per second; a rate alone is not known of all";
      const marks = against ? [[1, []], ...(bounds.length === 1 ? [[1 / bounds[0], [6, 5]]] : [])] : [];
      this.drawLines(against ? "Rate against alone" : "Rate", about, lines, { unit: against ? "" : "steps/s", low: 0, high: against ? 1.1 : undefined, marks });
    }

    drawLines(title, about, lines, { unit, low, high, marks = [] }) {
      const known = lines.filter(([, series]) => series && series.mean.some((v) => v !== null));
      if (!known.length) return;
      const made = this.figure(title, about);
      const data = [this.x];
      const series = [];
      const bands = [];
      const said = [];
      for (const [i, [name, values, place]] of known.entries()) {
        const shade = colour(place);
        const dash = DASHES[Math.floor(place / LIGHT.length) % DASHES.length];
        data.push(values.mean);
        series.push({ label: name, stroke: shade, width: 1.6, dash, points: { show: values.mean.filter((v) => v !== null).length < 3, size: 5 } });
        const here = values.mean.filter((v) => v !== null);
        said.push(`${name}: mean ${figure(here.reduce((a, b) => a + b, 0) / here.length)}${unit && ` ${unit}`}`);
        if (values.least && known.length <= 12) {
          data.push(values.greatest, values.least);
          series.push({ show: true, width: 0, points: { show: false } }, { show: true, width: 0, points: { show: false } });
          const top = data.length - 2;
          bands.push({ series: [top, top + 1], fill: `${shade}33` });
        }
      }
      const of = [];
      data.slice(1).forEach((values, i) => { if (series[i].label) of.push(i + 1); });
      made.chart.setAttribute("aria-label", `${title}. ${said.slice(0, 12).join("; ")}.`);
      const drawMarks = (u) => {
        const c = u.ctx;
        c.save();
        c.strokeStyle = look("--soft");
        c.lineWidth = uPlot.pxRatio;
        for (const [at, dash] of marks) {
          const y = u.valToPos(at, "y", true);
          c.setLineDash(dash.map((d) => d * uPlot.pxRatio));
          c.beginPath();
          c.moveTo(u.bbox.left, y);
          c.lineTo(u.bbox.left + u.bbox.width, y);
          c.stroke();
        }
        c.restore();
      };
      this.plot(made, {
        height: 190,
        scales: { y: { range: (_, min, max) => [low ?? min ?? 0, Math.max(high ?? 0, max === null ? 1 : max * 1.05) || 1] } },
        axis: { values: (_, at) => at.map((v) => `${figure(v)}${unit === "%" ? " %" : ""}`) },
        series, bands,
        hooks: { drawAxes: [drawMarks] },
        tell: (u) => {
          const i = u.cursor.idx;
          if (u.cursor.left < 0 || i === null || i === undefined) return "";
          const words = of.slice(0, 8).map((s, k) => `${known[k][0]} ${figure(data[s][i])}${unit && data[s][i] !== null ? ` ${unit}` : ""}`);
          return `${span(this.x[i])}: ${words.join(", ")}${of.length > 8 ? ", ..." : ""}`;
        },
      }, data);
      const legend = make("ul", made.part, undefined, "legend");
      for (const [name, , place] of known.slice(0, 40)) {
        const item = make("li", legend);
        const swatch = make("span", item, undefined, "swatch");
        swatch.style.background = colour(place);
        item.append(name);
      }
    }
  }

  const scale = (series, factor) => {
    const times = (values) => values && values.map((v) => (v === null ? null : v * factor));
    return { mean: times(series.mean), least: times(series.least), greatest: times(series.greatest) };
  };

  // A pack that is folded is drawn when it is opened: before, it has no width.
  const isOpen = (chart) => !chart.box.closest("details.pack:not([open])");
  const drawAll = () => { for (const chart of charts) if (isOpen(chart)) chart.draw(); };
  // As cards they are still a table to those who are read it; said here, since there are thousands.
  for (const cell of document.querySelectorAll(".cards td")) cell.setAttribute("role", "cell");

  // Nothing is out of sight without a word.
  const tellMore = () => {
    for (const wide of document.querySelectorAll(".wide")) {
      wide.previousElementSibling.hidden = wide.scrollWidth <= wide.clientWidth + 1;
    }
  };
  for (const box of document.querySelectorAll(".charts")) {
    const place = Number(box.dataset.pack);
    charts.push(new PackCharts(packs[place], place, box));
  }

  const theme = document.getElementById("theme");
  const tellTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(root.dataset.theme !== undefined));
    theme.setAttribute("aria-label", isDark() ? "Show light" : "Show dark");
  };
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tellTheme();
    drawAll();
  });
  dark.addEventListener("change", () => { tellTheme(); drawAll(); });

  const filter = document.getElementById("filter");
  if (filter) {
    filter.addEventListener("input", () => {
      let count = 0;
      const rows = [...document.querySelectorAll("#table tbody tr")];
      for (const row of rows) {
        row.hidden = !row.dataset.text.toLowerCase().includes(filtered());
        if (!row.hidden) count += 1;
      }
      const hidden = new Set(rows.filter((row) => row.hidden).map((row) => row.dataset.id));
      for (const row of document.querySelectorAll(".pack tr[data-id]")) row.hidden = hidden.has(row.dataset.id);
      document.getElementById("filtered").textContent = filtered() ? `${count} of ${rows.length}` : "";
      drawAll();
    });
  }

  for (const chart of charts) {
    const pack = chart.box.closest("details.pack");
    if (pack) pack.addEventListener("toggle", () => { if (pack.open) chart.draw(); });
  }

  // A hint leads to its word, and the time line to a pack, wherever that is hidden.
  const openWords = () => {
    const word = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const closed = word && word.closest("details");
    if (closed && !closed.open) {
      closed.open = true;
      word.scrollIntoView();
    }
  };
  addEventListener("hashchange", openWords);
  for (const stay of document.querySelectorAll(".stay")) {
    // A second click changes no address, and opens the pack all the same.
    stay.addEventListener("click", () => requestAnimationFrame(openWords));
  }
  openWords();

  let waiting = 0;
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => { tellMore(); drawAll(); });
  });
  addEventListener("beforeprint", () => { printing = true; drawAll(); });
  addEventListener("afterprint", () => { printing = false; drawAll(); });
  tellTheme();
  tellMore();
  drawAll();
})();
