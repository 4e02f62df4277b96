"use strict";
// Draws the recordings in the element "data": one below the other's headings, several side by side on the same scales.
// What stands in them was written by programs: it goes into the page as text only.
(() => {
  const runs = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("runs");
  main.replaceChildren();
  main.classList.toggle("one", runs.length === 1);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // Numbers as people read them.
  const scaled = (n, step, units) => {
    let i = 0;
    while (Math.abs(n) >= step && i + 1 < units.length) { n /= step; i++; }
    const digits = n === 0 || Math.abs(n) >= 100 || Number.isInteger(n) ? 0 : Math.abs(n) >= 10 ? 1 : 2;
    return n.toFixed(digits) + units[i];
  };
  const bytes = (n) => n == null ? "" : scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
  const count = (n) => n == null ? "" : scaled(n, 1000, ["", "k", "M", "G"]);
  const exact = (n) => Number(n).toLocaleString("en");
  const time = (us) => us == null ? "" : us < 1000 ? us.toPrecision(3) + " µs" : us < 1e6 ? (us / 1000).toPrecision(3) + " ms" : (us / 1e6).toPrecision(3) + " s";
  const percent = (n) => n == null ? "" : (100 * n).toFixed(n > 0 && n < 0.1 ? 1 : 0) + "%";
  const seconds = (s) => s == null ? "" : s < 10 ? Number(s.toFixed(2)) + " s" : s < 60 ? s.toFixed(1) + " s" : Math.floor(s / 60) + ":" + String(Math.floor(s % 60)).padStart(2, "0");

  const make = (tag, attributes, ...inside) => {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(attributes ?? {})) {
      if (k === "class") e.className = v; else if (k in e && typeof v !== "string") e[k] = v; else e.setAttribute(k, v);
    }
    e.append(...inside);
    return e;
  };
  const part = (column, title, about) => {
    const s = make("section", {}, make("h2", {}, title));
    if (about) s.append(make("p", { class: "about" }, about));
    column.append(s);
    return s;
  };
  const table = (head, rows) => make("div", { class: "wide" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((h) => make("th", h.text ? { class: "text" } : {}, h.name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, i) => make("td", head[i].text ? { class: "text" } : {}, cell)))))));

  // (So that a line of a grid is a round number of bytes.)
  const powers = Array.from({ length: 62 }, (_, i) => 2 ** i);
  const charts = [];
  const width = (within) => Math.max(280, within.clientWidth || 600);
  // Lines over x. `series`: name, colour, values, dash, fill.
  const chart = (within, label, x, series, y, options = {}) => {
    const figure = make("figure", { role: "img", "aria-label": label });
    within.append(figure);
    const axis = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    const plot = new uPlot({
      width: width(within), height: options.height ?? 220,
      scales: { x: { time: false, distr: options.log ? 3 : 1, range: options.x }, y: { range: options.y ?? ((u, lo, hi) => [0, hi > 0 ? hi * 1.05 : 1]) } },
      axes: [{ ...axis, incrs: options.xText === bytes ? powers : undefined, values: (u, all) => all.map((v) => v == null ? "" : (options.xText ?? seconds)(v)) },
        { ...axis, size: 76, incrs: options.bytes ? powers : undefined, values: (u, all) => all.map((v) => y(v)) }],
      series: [{ label: options.xName ?? "time", value: (u, v) => (options.xText ?? seconds)(v) },
        ...series.map((s) => ({
          label: s.name, stroke: colour(s.colour), width: 1.5, dash: s.dash, points: { show: options.points ?? false },
          fill: s.fill ? colour(s.colour) + "22" : undefined, value: (u, v) => y(v), spanGaps: true,
        }))],
      cursor: { points: { size: 5 } },
    }, [x, ...series.map((s) => s.values)], figure);
    charts.push([plot, within]);
    return plot;
  };
  addEventListener("resize", () => charts.forEach(([plot, within]) => plot.setSize({ width: width(within), height: plot.height })));

  // The same scales for all of them.
  const most = (f) => Math.max(0, ...runs.map(f).flat().filter((v) => v != null && isFinite(v)));
  const top = (f) => { const m = most(f); return () => [0, m > 0 ? m * 1.05 : 1]; };
  const longest = most((r) => r.seconds);
  const overTime = () => [0, longest || 1];

  const levels = [["budget", "ink", [6, 4]], ["in memory", "blue", null, true], ["all of its processes' memory", "pink"], ["in swap", "orange"], ["compressed memory", "green"]];
  const moved = [["in", "blue"], ["out", "orange"], ["in, from compressed memory", "sky"], ["out, to compressed memory", "gold"]];
  const faults = [["read from swap", "orange"], ["others", "blue"]];
  const waits = [["threads in faults", "orange"], ["threads waiting for memory", "pink"]];
  const lines = (of, names) => names.map(([name, colour, dash, fill], i) => ({ name, colour, dash, fill, values: of[i] }));

  const heatMap = (section, heat, longest) => {
    const layers = heat.layers.filter((l) => l.cells.length);
    if (!layers.length) { section.append(make("p", {}, "Nothing was recorded.")); return; }
    const canvas = make("canvas", { class: "heat", role: "img", "aria-label": "heat map of addresses over time" });
    const height = Math.max(60, Math.min(512, heat.rows * Math.max(2, Math.floor(384 / heat.rows))));
    canvas.width = heat.columns; canvas.height = heat.rows; canvas.style.height = height + "px";
    // (Side by side a second is as long in both.)
    canvas.style.width = 100 * heat.seconds / (longest || heat.seconds || 1) + "%";
    const told = make("p", { class: "told", "aria-live": "polite" }, "Point at the map to read it.");
    let values;
    const draw = (layer) => {
      values = new Float64Array(heat.rows * heat.columns);
      for (const [row, column, n] of layer.cells) values[row * heat.columns + column] = n;
      const high = Math.log1p(Math.max(...layer.cells.map((c) => c[2])));
      const context = canvas.getContext("2d");
      const image = context.createImageData(heat.columns, heat.rows);
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const [from, to] = dark ? [[30, 50, 80], [255, 214, 90]] : [[198, 222, 240], [120, 10, 40]];
      values.forEach((n, i) => {
        if (n === 0) return;
        const s = high > 0 ? Math.log1p(n) / high : 1;
        for (let k = 0; k < 3; k++) image.data[4 * i + k] = from[k] + (to[k] - from[k]) * s;
        image.data[4 * i + 3] = 255;
      });
      context.putImageData(image, 0, 0);
    };
    const choice = make("div", { class: "choice", role: "radiogroup" });
    const group = "layer" + Math.random();
    layers.forEach((layer, i) => {
      const button = make("input", { type: "radio", name: group });
      button.checked = i === 0;
      button.addEventListener("change", () => draw(layer));
      choice.append(make("label", {}, button, " " + layer.name));
    });
    canvas.addEventListener("mousemove", (e) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.min(heat.columns - 1, Math.max(0, Math.floor((e.clientX - box.left) / box.width * heat.columns)));
      const row = Math.min(heat.rows - 1, Math.max(0, Math.floor((e.clientY - box.top) / box.height * heat.rows)));
      told.textContent = seconds(column / heat.columns * heat.seconds) + ", " + heat.addresses[row] + ": about " + exact(Math.round(values[row * heat.columns + column])) + " pages";
    });
    section.append(choice, canvas, told);
    draw(layers[0]);
  };

  const flameGraph = (section, root, seconds) => {
    if (!root || !root.faults) { section.append(make("p", {}, "No stacks were recorded: they are in signal mode only.")); return; }
    const box = make("div", { class: "flame" });
    const told = make("p", { class: "told", "aria-live": "polite" }, "Click a function to see only what it calls; click the first line to see all.");
    const hue = (name) => { let h = 0; for (const c of name) h = (h * 31 + c.codePointAt(0)) >>> 0; return h; };
    let by = "time";
    let shown = root;
    const draw = () => {
      box.replaceChildren();
      let deepest = 0;
      const whole = Math.max(shown[by], 1e-12);
      const place = (node, depth, from) => {
        const wide = node[by] / whole;
        if (wide < 0.002) return;
        deepest = Math.max(deepest, depth);
        const h = hue(node.name);
        const cell = make("div", { tabindex: "0" }, node.name);
        cell.style.cssText = `top:${depth * 18}px;left:${100 * from}%;width:${100 * wide}%;background:hsl(${20 + h % 35} ${60 + h % 30}% ${68 + (h >> 8) % 12}%)`;
        const words = `${node.name}: ${percent(node.time / Math.max(root.time, 1e-12))} of the time in faults, ${percent(node.faults / root.faults)} of the faults`;
        cell.title = words;
        const tell = () => { told.textContent = words; };
        cell.addEventListener("mouseenter", tell);
        cell.addEventListener("focus", tell);
        const go = () => { shown = node === shown ? root : node; draw(); };
        cell.addEventListener("click", go);
        cell.addEventListener("keydown", (e) => { if (e.key === "Enter") go(); });
        box.append(cell);
        let at = from;
        for (const child of node.children ?? []) { place(child, depth + 1, at); at += child[by] / whole; }
      };
      place(shown, 0, 0);
      box.style.height = (deepest + 1) * 18 + "px";
    };
    const choice = make("div", { class: "choice", role: "radiogroup" });
    const group = "by" + Math.random();
    for (const [key, name] of [["time", "by time in faults"], ["faults", "by faults"]]) {
      const button = make("input", { type: "radio", name: group });
      button.checked = key === by;
      button.addEventListener("change", () => { by = key; draw(); });
      choice.append(make("label", {}, button, " " + name));
    }
    section.append(choice, box, told);
    draw();
  };

  const distribution = (section, label, all) => {
    const x = [...new Set(all.flatMap((s) => s.buckets.map((b) => b[0])))].sort((a, b) => a - b);
    if (x.length < 2) return;
    const series = all.map((s) => {
      const of = new Map(s.buckets);
      const sum = s.buckets.reduce((n, b) => n + b[1], 0) || 1;
      return { name: s.name, colour: s.colour, values: x.map((v) => of.has(v) ? of.get(v) / sum : null) };
    });
    chart(section, label, x, series, percent, { log: true, xText: time, xName: "took", height: 180 });
  };

  const colours = ["orange", "blue", "green", "pink", "gold", "sky"];
  const columns = runs.map((run) => {
    const column = make("article", {});
    main.append(column);
    return [run, column];
  });
  for (const [run, column] of columns) {
    column.append(make("h1", {}, run.title));
    column.append(make("ul", { class: "facts" }, ...run.facts.map(([name, value]) => make("li", {}, name + " ", make("b", {}, value)))));
    for (const line of run.verdict) column.append(make("p", { class: "verdict" }, line));
    for (const note of run.notes) column.append(make("p", { class: "about" }, note));

    const t = run.t;
    let s = part(column, "Memory over time", "The dashed line is the budget: what is in memory of managed memory stays below it.");
    chart(s, "memory over time", t, lines(run.levels, levels), bytes, { x: overTime, y: top((r) => r.levels.flat()), bytes: true });
    s = part(column, "Swapped", "Bytes a second.");
    chart(s, "bytes swapped a second", t, lines(run.moved, moved), (v) => bytes(v) + (v == null ? "" : "/s"), { x: overTime, y: top((r) => r.moved.flat()), height: 180, bytes: true });
    s = part(column, "Faults", "Faults a second, and how many threads were in faults, or waited until memory was free, at a time.");
    chart(s, "faults a second", t, lines(run.faults, faults), (v) => v == null ? "" : count(v) + "/s", { x: overTime, y: top((r) => r.faults.flat()), height: 160 });
    chart(s, "threads in faults", t, lines(run.waits, waits), (v) => v == null ? "" : v.toFixed(2), { x: overTime, y: top((r) => r.waits.flat()), height: 140 });

    s = part(column, "Addresses over time", "Each line is a part of the program's managed memory, the lowest addresses on top; parts that nothing happened to are left out. The stronger the colour, the more pages.");
    heatMap(s, run.heat, longest);

    s = part(column, "Where faults come from", "Each line calls the one below it. The wider, the more of the time in faults was spent there.");
    flameGraph(s, run.flame);

    s = part(column, "How long faults took", "Of all faults; the curve is of those that were recorded.");
    s.append(table([{ name: "class", text: true }, { name: "faults" }, { name: "median" }, { name: "99%" }, { name: "longest" }, { name: "time in all, about" }, { name: "", text: true }],
      run.classes.map((c) => [c.name, exact(c.count), time(c.p50_us), time(c.p99_us), time(c.max_us), seconds(c.seconds), c.doc])));
    distribution(s, "how long faults took", run.classes.filter((c) => c.buckets.length).map((c, i) => ({ ...c, colour: colours[i % colours.length] })));

    if (run.areas.length) {
      s = part(column, "Swap devices", "How long reads and writes took.");
      s.append(table([{ name: "area", text: true }, { name: "reads" }, { name: "median" }, { name: "99%" }, { name: "longest" }, { name: "writes" }, { name: "median" }, { name: "99%" }, { name: "longest" }, { name: "errors" }],
        run.areas.map((a) => [a.name, exact(a.reads.count), time(a.reads.p50_us), time(a.reads.p99_us), time(a.reads.max_us), exact(a.writes.count), time(a.writes.p50_us), time(a.writes.p99_us), time(a.writes.max_us), exact(a.read_errors + a.write_errors)])));
      distribution(s, "how long reads and writes took", run.areas.flatMap((a, i) => [
        { name: a.name + ", reads", colour: colours[2 * i % colours.length], buckets: a.reads.buckets_us },
        { name: a.name + ", writes", colour: colours[(2 * i + 1) % colours.length], buckets: a.writes.buckets_us },
      ]).filter((d) => d.buckets.length));
    }

    if (run.advisor) {
      s = part(column, "Other budgets", run.advisor.text);
      const at = run.advisor.budgets;
      chart(s, "what would come back from swap with other budgets", at.map((b) => b.memory_bytes),
        [{ name: "would come back from swap", colour: "blue", values: at.map((b) => b.pages_in * 4096), fill: true }], bytes, { xText: bytes, xName: "budget", points: true, height: 200, bytes: true });
    }

    if (run.log.length) {
      s = part(column, "What was decided, and what happened");
      s.append(table([{ name: "at" }, { name: "", text: true }], run.log.map(([at, text]) => [seconds(at), text])));
    }
    if (run.processes.length > 1) {
      s = part(column, "Processes");
      s.append(table([{ name: "pid" }, { name: "", text: true }], run.processes.map(([pid, name]) => [String(pid), name])));
    }
  }
  charts.forEach(([plot, within]) => plot.setSize({ width: width(within), height: plot.height }));
  document.documentElement.dataset.drawn = String(charts.length);
})();
