"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const GUTTER = 132;
  const DECODE = 1, GUEST = 2, RECALLED = 4;

  // Colours, read anew when the scheme changes.
  let colour = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = name => style.getPropertyValue("--" + name).trim();
    const page = read("page");
    const channels = hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
    const mix = (a, b, share) => {
      const other = channels(b);
      const mixed = channels(a).map((c, i) => Math.round(c * share + other[i] * (1 - share)));
      return "#" + mixed.map(c => c.toString(16).padStart(2, "0")).join("");
    };
    const tenant = data.tenants.map((_, i) => mix(read("t" + i % 6), page, 1 - 0.3 * (Math.floor(i / 6) % 3)));
    colour = {
      page, ink: read("ink"), muted: read("muted"), rule: read("rule"), faint: read("faint"),
      mark: read("mark"), guest: read("guest"), tenant,
      pale: tenant.map(c => mix(c, page, 0.5)),
      kind: data.kinds.map((_, i) => read("m" + i)),
    };
  }

  // Spans of a device with absolute times, and for each the latest finish up to it, so that the
  // first visible span is found by bisection even where spans overlap.
  function unpack(flat, from) {
    const n = flat.length / 5;
    const spans = {
      n, start: new Float64Array(n), finish: new Float64Array(n), latest: new Float64Array(n),
      code: new Uint32Array(n), operators: new Float64Array(n), tokens: new Float64Array(n),
    };
    let at = from, latest = -Infinity;
    for (let i = 0; i < n; i++) {
      at += flat[5 * i];
      spans.start[i] = at;
      spans.finish[i] = at + flat[5 * i + 1];
      spans.latest[i] = latest = Math.max(latest, spans.finish[i]);
      spans.code[i] = flat[5 * i + 2];
      spans.operators[i] = flat[5 * i + 3];
      spans.tokens[i] = flat[5 * i + 4];
    }
    return spans;
  }
  for (const run of data.runs) run.spans = run.spans.map(flat => unpack(flat, run.detail[0]));

  function firstAfter(sorted, time) {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  const digits = value => value.toLocaleString("en-US", { maximumFractionDigits: 3 });
  function duration(us) {
    if (us < 1e3) return digits(us) + " µs";
    if (us < 1e6) return digits(us / 1e3) + " ms";
    return digits(us / 1e6) + " s";
  }
  function bytes(value) {
    for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (value >= unit) return (value / unit).toFixed(1) + " " + name;
    }
    return value + " B";
  }

  // Steps of 1, 2 or 5 times a power of ten.
  function step(range, count) {
    const rough = Math.max(range / count, 1e-9), power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find(f => f * power >= rough);
  }
  function timeAxis(g, left, right, y, from, to, perSecond) {
    const size = step((to - from) / perSecond, Math.max(2, (right - left) / 110)) * perSecond;
    const decimals = Math.max(0, -Math.floor(Math.log10(size / perSecond) + 1e-9));
    g.fillStyle = colour.muted;
    g.strokeStyle = colour.rule;
    g.textBaseline = "top";
    g.textAlign = "center";
    g.beginPath();
    for (let at = Math.ceil(from / size) * size; at <= to; at += size) {
      const x = left + (at - from) / (to - from) * (right - left);
      g.moveTo(Math.round(x) + 0.5, y);
      g.lineTo(Math.round(x) + 0.5, y + 4);
      if (x < right - 14) g.fillText((at / perSecond).toFixed(decimals) + " s", Math.max(x, left + 12), y + 6);
    }
    g.stroke();
  }
  function deviceName(g, device, y, height) {
    g.fillStyle = device.owner < 0 ? colour.muted : colour.tenant[device.owner];
    g.fillRect(0, y + 1, 4, height - 2);
    g.fillStyle = colour.ink;
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillText(fitted(g, device.name, GUTTER - 22), 11, y + height / 2 + 0.5);
  }
  function fitted(g, text, width) {
    if (g.measureText(text).width <= width) return text;
    let kept = text;
    while (kept.length > 1 && g.measureText(kept + "…").width > width) kept = kept.slice(0, -1);
    return kept + "…";
  }
  const rowHeight = run => run.devices.length <= 16 ? 30 : run.devices.length <= 32 ? 22 : 15;

  // The part of time that all timelines show, in microseconds.
  const whole = {
    from: Math.min(...data.runs.map(run => run.detail[0])),
    to: Math.max(...data.runs.map(run => run.detail[1])),
  };
  if (!(whole.to > whole.from)) whole.to = whole.from + 1;
  const view = { ...whole };
  function show(from, to) {
    const width = Math.min(Math.max(to - from, 20), whole.to - whole.from);
    const middle = (from + to) / 2;
    view.from = Math.min(Math.max(middle - width / 2, whole.from), whole.to - width);
    view.to = view.from + width;
    redraw("timeline");
  }

  const pictures = { timeline: {}, use: {}, memory: {} };

  pictures.timeline.height = run => run.devices.length * rowHeight(run) + 24;
  pictures.timeline.draw = (run, g, width, picture) => {
    const height = rowHeight(run), left = GUTTER, columns = width - left;
    const scale = columns / (view.to - view.from);
    const upper = Math.round((height - 5) * 0.62), lower = height - 5 - upper - 1;
    run.devices.forEach((device, row) => {
      const y = row * height;
      deviceName(g, device, y, height - 3);
      g.fillStyle = colour.faint;
      g.fillRect(left, y + 1, columns, upper);
      g.fillRect(left, y + 2 + upper, columns, lower);
      const spans = run.spans[row];
      // Spans that are too narrow for a rectangle of their own, as shares of columns by code.
      const narrow = new Map();
      let mark = -Infinity;
      const marks = [];
      for (let i = firstAfter(spans.latest, view.from); i < spans.n && spans.start[i] < view.to; i++) {
        const a = Math.max(0, (spans.start[i] - view.from) * scale);
        const b = Math.min(columns, (spans.finish[i] - view.from) * scale);
        if (b < 0) continue;
        const code = spans.code[i], guest = code & GUEST, tenant = code >> 3;
        if (b - a >= 3) {
          g.fillStyle = (code & DECODE ? colour.pale : colour.tenant)[tenant];
          g.fillRect(left + a, guest ? y + 2 + upper : y + 1, b - a - 0.5, guest ? lower : upper);
        } else {
          const key = code & ~RECALLED;
          let shares = narrow.get(key);
          if (!shares) narrow.set(key, shares = new Float32Array(columns + 1));
          for (let column = Math.floor(a); column <= b && column < columns; column++) {
            shares[column] += Math.max(0, Math.min(b, column + 1) - Math.max(a, column));
          }
        }
        if (code & RECALLED && b - mark >= 5) marks.push(mark = b);
      }
      const filled = [new Float32Array(columns + 1), new Float32Array(columns + 1)];
      for (const key of [...narrow.keys()].sort((a, b) => a - b)) {
        const guest = key & GUEST, shares = narrow.get(key), below = filled[guest ? 1 : 0];
        const full = guest ? lower : upper, base = guest ? y + 2 + upper + lower : y + 1 + upper;
        g.fillStyle = (key & DECODE ? colour.pale : colour.tenant)[key >> 3];
        for (let column = 0; column < columns; column++) {
          if (shares[column] === 0) continue;
          const tall = Math.min(shares[column], 1 - below[column]) * full;
          g.fillRect(left + column, base - below[column] * full - tall, 1, tall);
          below[column] = Math.min(1, below[column] + shares[column]);
        }
      }
      g.fillStyle = colour.mark;
      for (const x of marks) {
        g.beginPath();
        g.moveTo(left + x, y + upper + lower);
        g.lineTo(left + x - 2.5, y + height - 1);
        g.lineTo(left + x + 2.5, y + height - 1);
        g.fill();
      }
    });
    // The window of this run may end before the one that is shown.
    for (const [from, to] of [[view.from, run.detail[0]], [run.detail[1], view.to]]) {
      if (to <= from) continue;
      g.fillStyle = colour.page;
      g.fillRect(left + (from - view.from) * scale, 0, (to - from) * scale, run.devices.length * height);
    }
    timeAxis(g, left, width, run.devices.length * height, view.from, view.to, 1e6);
    if (picture.drag) {
      const [a, b] = [picture.drag.from, picture.drag.to].sort((a, b) => a - b);
      g.fillStyle = colour.ink;
      g.globalAlpha = 0.14;
      g.fillRect(a, 0, b - a, run.devices.length * height);
      g.globalAlpha = 1;
    }
  };
  pictures.timeline.tip = (run, x, y, width) => {
    const row = Math.floor(y / rowHeight(run)), spans = run.spans[row];
    if (!spans || x < GUTTER) return null;
    const perPixel = (view.to - view.from) / (width - GUTTER);
    const time = view.from + (x - GUTTER) * perPixel;
    let best = -1, distance = 3 * perPixel;
    for (let i = firstAfter(spans.latest, time - distance); i < spans.n && spans.start[i] <= time + distance; i++) {
      const away = Math.max(spans.start[i] - time, time - spans.finish[i], 0);
      if (away < distance) { best = i; distance = away; }
      if (away === 0) break;
    }
    if (best < 0) return null;
    const code = spans.code[best];
    return [
      data.tenants[code >> 3] + (code & DECODE ? " decode" : " prefill"),
      (code & GUEST ? "guest on " : "owner of ") + run.devices[row].name + (code & RECALLED ? ", recalled at the end" : ""),
      digits(spans.tokens[best]) + " tokens, " + digits(spans.operators[best]) + " operators",
      duration(spans.finish[best] - spans.start[best]) + " from " + (spans.start[best] / 1e6).toFixed(6) + " s",
    ].join("\n");
  };

  pictures.use.height = run => run.devices.length * rowHeight(run) + 28;
  pictures.use.draw = (run, g, width) => {
    const height = rowHeight(run), left = GUTTER, end = Math.max(run.seconds, 1);
    const at = second => left + Math.min(second, end) / end * (width - left);
    run.devices.forEach((device, row) => {
      const y = row * height, tall = height - 4, base = y + 1 + tall;
      deviceName(g, device, y, height - 3);
      g.fillStyle = colour.faint;
      g.fillRect(left, y + 1, width - left, tall);
      const shares = run.use[row] || [];
      for (let i = 0; 2 * i < shares.length; i++) {
        const x = Math.round(at(i * run.bin)), wide = Math.max(1, Math.round(at((i + 1) * run.bin)) - x);
        const owner = Math.min(shares[2 * i] / 1000, 1) * tall;
        const guest = Math.min(shares[2 * i + 1] / 1000 * tall, tall - owner);
        g.fillStyle = device.owner < 0 ? colour.muted : colour.tenant[device.owner];
        g.fillRect(x, base - owner, wide, owner);
        g.fillStyle = colour.guest;
        g.fillRect(x, base - owner - guest, wide, guest);
      }
    });
    const bottom = run.devices.length * height;
    timeAxis(g, left, width, bottom + 4, 0, end, 1);
    g.fillStyle = colour.ink;
    g.fillRect(at(run.detail[0] / 1e6), bottom, Math.max(2, at(run.detail[1] / 1e6) - at(run.detail[0] / 1e6)), 3);
  };
  pictures.use.tip = (run, x, y, width) => {
    const row = Math.floor(y / rowHeight(run)), device = run.devices[row];
    if (!device || x < GUTTER) return null;
    const bin = Math.floor((x - GUTTER) / (width - GUTTER) * Math.max(run.seconds, 1) / run.bin);
    const shares = run.use[row] || [];
    if (2 * bin + 1 >= shares.length) return null;
    const span = run.bin === 1 ? "second " + bin : "seconds " + bin * run.bin + " to " + (bin + 1) * run.bin;
    const owner = device.owner < 0 ? "owner" : data.tenants[device.owner];
    return device.name + ", " + span + "\n" + owner + " " + (shares[2 * bin] / 10).toFixed(1) + " %\nguests " +
      (shares[2 * bin + 1] / 10).toFixed(1) + " %";
  };

  const CELL = { width: 250, height: 104, gap: 24, top: 22, bottom: 14 };
  function cells(run, width) {
    const count = Math.max(1, Math.floor((width + CELL.gap) / (CELL.width + CELL.gap)));
    const wide = Math.floor((width + CELL.gap) / count - CELL.gap);
    return { count, wide, at: index => [index % count * (wide + CELL.gap), Math.floor(index / count) * CELL.height] };
  }
  const sum = (samples, i) => samples[i + 1] + samples[i + 2] + samples[i + 3] + samples[i + 4] + samples[i + 5];
  function memoryEnd(run) {
    return Math.max(1, run.seconds * 1000, ...run.memory.map(samples => samples.length ? samples[samples.length - 6] : 0));
  }
  pictures.memory.height = (run, width) => Math.ceil(run.devices.length / cells(run, width).count) * CELL.height;
  pictures.memory.draw = (run, g, width) => {
    const grid = cells(run, width), end = memoryEnd(run);
    const tall = CELL.height - CELL.top - CELL.bottom;
    run.devices.forEach((device, index) => {
      const [left, top] = grid.at(index), samples = run.memory[index], base = top + CELL.top + tall;
      let peak = 0;
      for (let i = 0; i < samples.length; i += 6) peak = Math.max(peak, sum(samples, i));
      const scale = tall / (1.06 * Math.max(run.usable[index], peak, 1));
      g.fillStyle = colour.faint;
      g.fillRect(left, top + CELL.top, grid.wide, tall);
      for (let i = 0; i < samples.length; i += 6) {
        const x = Math.round(left + samples[i] / end * grid.wide);
        const next = Math.round(left + (i + 6 < samples.length ? samples[i + 6] / end : 1) * grid.wide);
        let y = base;
        for (let kind = 0; kind < 5; kind++) {
          const part = samples[i + 1 + kind] * scale;
          g.fillStyle = colour.kind[kind];
          g.fillRect(x, y - part, Math.max(1, next - x), part);
          y -= part;
        }
      }
      const line = Math.round(base - run.usable[index] * scale) + 0.5;
      g.strokeStyle = colour.ink;
      g.setLineDash([4, 3]);
      g.beginPath();
      g.moveTo(left, line);
      g.lineTo(left + grid.wide, line);
      g.stroke();
      g.setLineDash([]);
      g.textBaseline = "alphabetic";
      g.textAlign = "right";
      g.fillStyle = colour.muted;
      const text = bytes(peak * run.unit) + " of " + bytes(run.usable[index] * run.unit);
      g.fillText(text, left + grid.wide, top + CELL.top - 6);
      g.textAlign = "left";
      g.fillStyle = device.owner < 0 ? colour.muted : colour.tenant[device.owner];
      g.fillRect(left, top + 7, 4, 11);
      g.fillStyle = colour.ink;
      g.fillText(fitted(g, device.name, grid.wide - g.measureText(text).width - 20), left + 10, top + CELL.top - 6);
    });
  };
  pictures.memory.tip = (run, x, y, width) => {
    const grid = cells(run, width);
    const index = Math.floor(y / CELL.height) * grid.count + Math.floor(x / (grid.wide + CELL.gap));
    if (!run.devices[index]) return null;
    const samples = run.memory[index], time = (x - grid.at(index)[0]) / grid.wide * memoryEnd(run);
    if (!(time >= 0 && time <= memoryEnd(run))) return null;
    let i = 0;
    while (i + 6 < samples.length && samples[i + 6] <= time) i += 6;
    if (!samples.length || samples[i] > time) return null;
    const lines = [run.devices[index].name + " at " + (time / 1000).toFixed(1) + " s"];
    data.kinds.forEach((kind, k) => {
      if (samples[i + 1 + k]) lines.push(kind + " " + bytes(samples[i + 1 + k] * run.unit));
    });
    lines.push("in use " + bytes(sum(samples, i) * run.unit) + " of " + bytes(run.usable[index] * run.unit));
    return lines.join("\n");
  };

  const drawn = [];
  function paint(picture) {
    const { canvas, run, kind } = picture;
    const width = Math.floor(picture.figure.clientWidth), height = pictures[kind].height(run, width);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.font = "12.5px " + getComputedStyle(document.body).fontFamily;
    if (width > GUTTER + 20) pictures[kind].draw(run, g, width, picture);
  }
  const waiting = new Set();
  function redraw(kind) {
    if (!waiting.size) {
      requestAnimationFrame(() => {
        const kinds = new Set(waiting);
        waiting.clear();
        for (const picture of drawn) if (kinds.has(picture.kind)) paint(picture);
      });
    }
    waiting.add(kind);
  }
  const redrawAll = () => Object.keys(pictures).forEach(redraw);

  function showTip(event, picture) {
    const box = picture.canvas.getBoundingClientRect();
    const text = pictures[picture.kind].tip(picture.run, event.clientX - box.left, event.clientY - box.top, box.width);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
    const low = event.clientY + 18 + tip.offsetHeight > innerHeight;
    tip.style.left = (right ? event.clientX - 12 - tip.offsetWidth : event.clientX + 16) + "px";
    tip.style.top = (low ? event.clientY - 12 - tip.offsetHeight : event.clientY + 18) + "px";
  }

  function zoomable(picture) {
    const { canvas } = picture;
    const at = event => Math.max(GUTTER, event.clientX - canvas.getBoundingClientRect().left);
    const timeAt = x => view.from + (x - GUTTER) / (canvas.clientWidth - GUTTER) * (view.to - view.from);
    const zoom = (centre, factor) => show(centre - (centre - view.from) * factor, centre + (view.to - centre) * factor);
    canvas.tabIndex = 0;
    canvas.addEventListener("pointerdown", event => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      picture.drag = { from: at(event), to: at(event) };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (!picture.drag) return;
      picture.drag.to = at(event);
      redraw("timeline");
    });
    canvas.addEventListener("pointerup", () => {
      if (!picture.drag) return;
      const [a, b] = [picture.drag.from, picture.drag.to].sort((a, b) => a - b);
      picture.drag = null;
      if (b - a > 4) show(timeAt(a), timeAt(b)); else redraw("timeline");
    });
    canvas.addEventListener("pointercancel", () => { picture.drag = null; redraw("timeline"); });
    canvas.addEventListener("dblclick", () => show(whole.from, whole.to));
    canvas.addEventListener("wheel", event => {
      if (event.ctrlKey || event.metaKey) {
        zoom(timeAt(at(event)), Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = event.deltaX / (canvas.clientWidth - GUTTER) * (view.to - view.from);
        show(view.from + by, view.to + by);
      } else {
        return;
      }
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("keydown", event => {
      const by = (view.to - view.from) / 8, centre = (view.from + view.to) / 2;
      if (event.key === "ArrowLeft") show(view.from - by, view.to - by);
      else if (event.key === "ArrowRight") show(view.from + by, view.to + by);
      else if (event.key === "+" || event.key === "=") zoom(centre, 0.5);
      else if (event.key === "-") zoom(centre, 2);
      else if (event.key === "0" || event.key === "Escape") show(whole.from, whole.to);
      else return;
      event.preventDefault();
    });
  }

  readColours();
  for (const figure of document.querySelectorAll(".picture")) {
    const run = data.runs[Number(figure.dataset.run)], kind = figure.dataset.kind;
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", { timeline: "Timeline", use: "Utilisation", memory: "Memory" }[kind] + " of the devices under " + run.name);
    figure.append(canvas);
    const picture = { figure, canvas, run, kind, drag: null };
    drawn.push(picture);
    canvas.addEventListener("pointermove", event => showTip(event, picture));
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    if (kind === "timeline") zoomable(picture);
    paint(picture);
  }
  window.addEventListener("resize", redrawAll);
  window.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redrawAll(); });
})();
