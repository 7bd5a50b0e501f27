// SPDX-License-Identifier: Apache-2.0
// Shows one call. Everything it says is in the JSON of the page; all of it becomes text, none of it markup.
"use strict";

(() => {
  const call = JSON.parse(document.getElementById("data").textContent);
  const { messages, steps, sound } = call;
  const CALLER = 0, AGENT = 1;
  const VOICE = { user: "Caller", assistant: "Agent" };
  const LANE = { user: CALLER, assistant: AGENT };
  const LONG_TEXT = 4000;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  const byId = (id) => document.getElementById(id);

  /** An element with attributes and children; strings become text. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  }

  /** Call-ms for people: 1:07.35. */
  function clock(ms, digits = 2) {
    if (ms === null) return "not known";
    const unit = 10 ** digits;
    const parts = Math.round((ms * unit) / 1000);
    const minutes = Math.floor(parts / (60 * unit));
    const hours = Math.floor(minutes / 60);
    const seconds = ((parts % (60 * unit)) / unit).toFixed(digits).padStart(digits ? 3 + digits : 2, "0");
    const pad = (number) => String(number).padStart(2, "0");
    return hours ? `${hours}:${pad(minutes % 60)}:${seconds}` : `${minutes}:${seconds}`;
  }

  const announce = (sentence) => { byId("say").textContent = sentence; };

  // -- sound ------------------------------------------------------------------------------------------
  // A take is what is played at once: spans of the recording, in samples, one after the other. `channel` is
  // the only voice that is heard, null for both. Voices play takes; there is one for each way to the sound.

  const spanOf = (channel, low, high) => ({ channel, low, high });
  const lengthOf = (take) => take.reduce((sum, span) => sum + span.high - span.low, 0);
  const secondsOf = (ranges) => ranges.reduce((sum, [, low, high]) => sum + high - low, 0) / sound.rate;

  /** The sample of the recording at an offset of a take. */
  function sampleAt(take, offset) {
    for (const { low, high } of take) {
      if (offset <= high - low) return low + offset;
      offset -= high - low;
    }
    return take.length ? take[take.length - 1].high : 0;
  }

  /** Plays what is in the page: pieces, decoded when needed, put together to the sample. */
  class EmbeddedVoice {
    static AT_ONCE_S = 10;
    static KEPT = 12;

    constructor() {
      this.context = null;
      this.pieces = new Map(); // a promise for each decoded piece, the latest used last
      this.run = 0;
      this.sources = [];
    }

    async play(take, from, ended) {
      this.stop();
      const run = this.run;
      // at the recording's own rate, so that samples stay what they are
      this.context ??= new AudioContext({ sampleRate: sound.rate });
      const { context } = this;
      const ready = context.resume();
      const total = lengthOf(take);
      const most = EmbeddedVoice.AT_ONCE_S * sound.rate;
      let at = from;
      this.origin = null;
      const endings = [];
      while (at < total) {
        const buffer = await this.buffer(take, at, Math.min(total, at + most));
        await ready;
        if (run !== this.run) return;
        const soon = Math.ceil((context.currentTime + 0.02) * sound.rate) / sound.rate;
        this.origin ??= soon;
        this.origin += Math.max(0, soon - this.origin - (at - from) / sound.rate); // it was not ready in time
        const source = context.createBufferSource();
        source.buffer = buffer;
        source.connect(context.destination);
        endings.push(new Promise((resolve) => { source.onended = resolve; }));
        source.start(this.origin + (at - from) / sound.rate);
        this.sources.push(source);
        this.from = from;
        at += buffer.length;
        if (endings.length > 1 && at < total) await endings[endings.length - 2];
        if (run !== this.run) return;
      }
      await endings[endings.length - 1];
      if (run === this.run) ended();
    }

    pause() { this.context?.suspend(); }
    resume() { this.context?.resume(); }

    stop() {
      this.run += 1;
      for (const source of this.sources) source.stop();
      this.sources = [];
      this.origin = null;
    }

    /** How many samples of the take were played; null until it sounds. */
    offset() {
      if (this.origin === null) return null;
      return this.from + Math.max(0, this.context.currentTime - this.origin) * sound.rate;
    }

    /** A stretch of a take as one buffer: one voice as it is, or both, a little apart. */
    async buffer(take, first, end) {
      const parts = [];
      let before = 0;
      for (const { channel, low, high } of take) {
        const start = low + Math.max(0, first - before);
        const stop = Math.min(high, low + end - before);
        before += high - low;
        for (let at = start; at < stop;) {
          const number = Math.floor(at / sound.piece);
          const until = Math.min(stop, (number + 1) * sound.piece);
          parts.push({ channel, number, low: at - number * sound.piece, high: until - number * sound.piece });
          at = until;
        }
      }
      const single = take.every((span) => span.channel !== null);
      const out = this.context.createBuffer(single ? 1 : 2, end - first, sound.rate);
      let at = 0;
      for (const { channel, number, low, high } of parts) {
        const piece = await this.piece(number);
        if (single) {
          out.copyToChannel(piece.getChannelData(channel).subarray(low, high), 0, at);
        } else {
          for (let ear = 0; ear < 2; ear += 1) {
            const heard = out.getChannelData(ear);
            for (let voice = 0; voice < piece.numberOfChannels; voice += 1) {
              const samples = piece.getChannelData(voice);
              const near = sound.channels.length === 1 || voice === ear ? 0.75 : 0.45;
              for (let i = low; i < Math.min(high, samples.length); i += 1) heard[at + i - low] += near * samples[i];
            }
          }
        }
        at += high - low;
      }
      return out;
    }

    piece(number) {
      let piece = this.pieces.get(number);
      this.pieces.delete(number);
      piece ??= this.decode(number);
      this.pieces.set(number, piece);
      for (const old of this.pieces.keys()) {
        if (this.pieces.size <= EmbeddedVoice.KEPT) break;
        this.pieces.delete(old);
      }
      return piece;
    }

    async decode(number) {
      const text = byId(`piece-${number}`).textContent;
      const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
      return this.context.decodeAudioData(bytes.buffer);
    }
  }

  /** Plays the recording beside the page: both voices, to within a frame of the screen. */
  class LinkedVoice {
    constructor() {
      this.audio = new Audio();
      this.audio.preload = "metadata";
      this.audio.src = sound.href;
      this.run = 0;
    }

    async play(take, from, ended) {
      this.stop();
      const run = this.run;
      this.take = take;
      let before = 0;
      for (const { low, high } of take) {
        const skipped = Math.max(0, from - before);
        before += high - low;
        if (skipped >= high - low) continue;
        this.before = before - (high - low);
        this.low = low;
        this.audio.currentTime = (low + skipped) / sound.rate;
        await this.audio.play();
        while (run === this.run && !this.audio.ended && this.audio.currentTime < high / sound.rate) {
          await new Promise((resolve) => { requestAnimationFrame(resolve); });
        }
        if (run !== this.run) return;
      }
      this.audio.pause();
      ended();
    }

    pause() { this.audio.pause(); }
    resume() { this.audio.play(); }
    stop() { this.run += 1; this.audio.pause(); this.take = null; }
    offset() { return this.take ? this.before + this.audio.currentTime * sound.rate - this.low : null; }
  }

  // -- what is played ---------------------------------------------------------------------------------
  const voice = sound.pieces ? new EmbeddedVoice() : sound.href ? new LinkedVoice() : null;
  let playing = null; // { take, label, button, message, from, paused, follow }
  let head = 0; // call-ms: where the playhead is
  let picked = messages.length ? 0 : null;

  function play(take, { label, button = null, message = null, from = 0, follow = false }) {
    stop();
    playing = { take, label, button, message, paused: false, follow };
    const mine = playing;
    voice.play(take, from, () => { if (playing === mine) finish(); }).catch((error) => {
      if (playing !== mine) return;
      stop();
      button?.classList.add("failed");
      fail(`The audio cannot be played: ${error.message || error}`);
    });
    showPlaying();
    announce(`Playing ${label}`);
    requestAnimationFrame(tick);
  }

  function finish() {
    head = (sampleAt(playing.take, lengthOf(playing.take)) / sound.rate) * 1000;
    stop();
  }

  function stop() {
    if (!playing) return;
    voice.stop();
    playing.button?.classList.remove("on");
    playing = null;
    showPlaying();
    showSounding();
    drawHead();
  }

  function pause() {
    playing.paused = !playing.paused;
    if (playing.paused) voice.pause();
    else { voice.resume(); requestAnimationFrame(tick); }
    showPlaying();
    announce(playing.paused ? "Paused" : `Playing ${playing.label}`);
  }

  function fail(sentence) {
    byId("now").textContent = sentence;
    announce(sentence);
  }

  function tick() {
    if (!playing || playing.paused) return;
    const offset = voice.offset();
    if (offset !== null) {
      const total = lengthOf(playing.take);
      head = (sampleAt(playing.take, Math.min(offset, total)) / sound.rate) * 1000;
      drawHead();
      if (playing.message === null) showSounding();
    }
    requestAnimationFrame(tick);
  }

  function playMessage(place) {
    const message = messages[place];
    const row = rows[place];
    pick(place, { quiet: true }); // the focus stays on the button that was pressed
    show(row.item);
    if (!voice || !message.ranges.length) return announce(`Message ${message.seq}: ${message.silent || sound.note}`);
    if (playing?.message === place) return pause();
    const take = message.ranges.map(([channel, low, high]) => spanOf(channel, low, high));
    const label = `message ${message.seq}, ${VOICE[message.role]?.toLowerCase() ?? message.role}`;
    play(take, { label, button: row.button, message: place });
    return undefined;
  }

  /** From a moment of the call to its end, or to another, both voices. */
  function playCall(fromMs, toMs = null, label = "the call") {
    const low = Math.min(Math.round((fromMs * sound.rate) / 1000), sound.frames);
    const high = toMs === null ? sound.frames : Math.min(Math.round((toMs * sound.rate) / 1000), sound.frames);
    if (low >= high) return;
    play([spanOf(null, low, high)], { label, button: toMs === null ? byId("play") : null, follow: toMs === null });
  }

  function togglePlay() {
    if (playing) pause();
    else if (voice) playCall(head >= call.duration_ms - 20 || head * sound.rate >= sound.frames * 1000 ? 0 : head);
  }

  function seek(ms) {
    const follow = playing?.follow && !playing.paused;
    stop();
    head = Math.max(0, Math.min(ms, call.duration_ms));
    drawHead();
    showClock();
    if (follow) playCall(head);
  }

  function showPlaying() {
    const on = Boolean(playing) && !playing.paused;
    const button = byId("play");
    button.classList.toggle("on", on);
    button.setAttribute("aria-label", on ? "Pause" : playing ? "Go on" : "Play the call");
    if (playing?.button) playing.button.classList.toggle("on", on);
    byId("now").textContent = playing ? (playing.paused ? `paused: ${playing.label}` : playing.label) : "";
    showClock();
  }

  const showClock = () => { byId("clock").textContent = `${clock(head, 1)} / ${clock(call.duration_ms, 1)}`; };

  let sounding = [];
  /** Marks the messages whose audio is being heard while the whole call plays. */
  function showSounding() {
    const now = playing && playing.message === null
      ? messages.flatMap(({ blocks }, place) => (blocks.some(([from, to]) => from <= head && head < to) ? [place] : []))
      : [];
    if (now.join() === sounding.join()) return;
    for (const place of sounding) rows[place].item.classList.remove("sounding");
    for (const place of now) rows[place].item.classList.add("sounding");
    const fresh = now.find((place) => !sounding.includes(place));
    sounding = now;
    if (playing?.follow && fresh !== undefined) show(rows[fresh].item);
  }

  const show = (element) => element.scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });

  // -- the head of the page ---------------------------------------------------------------------------
  function fillHead() {
    byId("title").textContent = call.call.title;
    byId("summary").textContent = call.call.summary;
    for (const [name, value] of [...call.call.facts, ["audio", sound.note]]) {
      byId("facts").append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    }
    const count = call.warnings.length;
    if (count) {
      byId("warnings").hidden = false;
      byId("warnings-title").textContent = count === 1 ? "One warning" : `${count} warnings`;
      byId("warning-list").append(...call.warnings.map((warning) => make("li", { dir: "auto" }, warning)));
    }
    if (call.judge) fillJudge(call.judge);
  }

  function fillJudge(judge) {
    const scored = judge.dimensions.filter(({ score }) => score !== null);
    const marks = scored.filter(({ severity }) => severity !== "None");
    byId("judge").hidden = false;
    byId("judge-title").append(
      "Voice judge: ", make("b", {}, judge.overall),
      `, ${scored.length} of ${judge.dimensions.length} dimensions scored`,
      marks.length ? `; ${marks.map(({ name, severity }) => `${name}: ${severity}`).join(", ")}` : "",
    );
    byId("judge-note").textContent = `judge ${judge.judge}${judge.error ? `; it failed: ${judge.error}` : ""}`;
    for (const found of judge.dimensions) {
      const score = make("td", { class: "score" }, found.score === null ? "not scored" : found.score.toFixed(2), " ");
      if (found.severity && found.severity !== "None") {
        score.append(make("span", { class: `severity ${found.severity}` }, found.severity));
      }
      const why = make("td", { dir: "auto" }, found.why || "");
      if (found.evidence.length) why.append(make("ul", { class: "evidence" }, ...found.evidence.map(evidence)));
      byId("judge-table").tBodies[0].append(make("tr", {}, make("th", { scope: "row" }, found.name), score, why));
    }
  }

  function evidence({ message, start, end, said, quote }) {
    const from = start ?? (message === null ? null : messages[message]?.start ?? null);
    const to = end ?? (message === null ? null : messages[message]?.end ?? null);
    const row = make("li");
    if (from !== null && (to === null || to <= from)) row.append(`at ${clock(from)}: `);
    else if (from !== null) {
      const label = `evidence, ${said}`;
      row.append(make("button", {
        class: "chip", type: "button", disabled: !voice,
        "aria-label": `Play ${clock(from)} to ${clock(to)}: ${said}`,
        onclick: () => {
          if (message !== null) pick(message, { quiet: true });
          playCall(from, to, label);
        },
      }, `▶ ${clock(from)}–${clock(to)}`), " ");
    }
    row.append(said);
    if (quote !== null) row.append(" ", make("q", { dir: "auto" }, quote));
    if (message !== null) row.append(" ", make("a", { href: `#m${message}` }, `message ${messages[message].seq}`));
    return row;
  }

  // -- the messages -----------------------------------------------------------------------------------
  const rows = []; // of each message: its element and its play button
  const stepRows = [];
  let linked = null; // the step whose messages are shown

  function fillList() {
    const list = document.createDocumentFragment();
    for (const [kind, place] of call.order) list.append(kind === "step" ? stepRow(place) : messageRow(place));
    byId("list").append(list);
    if (!messages.length) byId("list").append(make("li", { class: "quiet" }, "No message is known of this call."));
  }

  function messageRow(place) {
    const message = messages[place];
    const id = `m${place}`;
    const who = VOICE[message.role] ?? message.role;
    const playable = Boolean(voice) && message.ranges.length > 0;
    const length = playable ? `${secondsOf(message.ranges).toFixed(2)} s of audio` : null;
    const why = message.silent ?? (voice ? null : sound.note);
    const button = make("button", {
      class: "play", type: "button", disabled: !playable, title: playable ? null : why,
      "aria-label": playable ? `Play message ${message.seq}, ${who}, ${length}` : `Message ${message.seq}: ${why}`,
      onclick: () => playMessage(place),
    });
    const times = message.start === null
      ? message.state === "unplayed" ? null : make("span", {}, "time not known")
      : make("span", {}, `${clock(message.start)}–${message.end === null ? "end not known" : clock(message.end)}`);
    const parts = message.ranges.length > 1 ? ` in ${message.ranges.length} parts` : "";
    const item = make(
      "li",
      {
        id, tabindex: place === picked ? 0 : -1, "aria-labelledby": `${id}-line ${id}-text ${id}-worth`,
        class: `message ${who === VOICE.user ? "user" : "assistant"}${message.committed ? "" : " outside"}`,
        onfocusin: () => pick(place, { quiet: true }),
      },
      button,
      make(
        "div",
        {},
        make(
          "div",
          { class: "line", id: `${id}-line` },
          make("span", { class: "who" }, who),
          make("a", { class: "seq", href: `#${id}`, tabindex: -1 }, `#${message.seq}`),
          times,
          make("span", { class: `state ${message.state}` }, message.ended),
          make("span", {}, length ? `${length}${parts}` : message.silent ?? ""),
          make("span", { class: "tag read" }, "read by the step"),
          make("span", { class: "tag wrote" }, "written by the step"),
        ),
        ...textOf(message, id),
        aboutOf(message, id),
      ),
    );
    rows[place] = { item, button };
    return item;
  }

  function textOf(message, id) {
    const box = make("p", { class: "text", id: `${id}-text`, dir: "auto" });
    const out = [box];
    if (message.text === null) {
      box.classList.add("none");
      box.append("(no text)");
      if (message.unheard === null && message.generated === null) return out;
    } else if (message.state === "unplayed") {
      box.append(make("span", { class: "cut" }, make("span", { class: "unseen" }, "never heard: "), ...shortened(message.text)));
    } else {
      box.append(...shortened(message.text));
    }
    if (message.unheard !== null) {
      if (message.state === "interrupted") box.append(make("span", { class: "knife", "aria-hidden": true }));
      box.append(make("span", { class: "cut" }, make("span", { class: "unseen" }, " never heard: "), ...shortened(message.unheard)));
    }
    if (message.generated !== null) {
      out.push(make("p", { class: "generated", dir: "auto" }, "generated: ", ...shortened(message.generated)));
    }
    return out;
  }

  /** The text, or its beginning and a button for the rest. */
  function shortened(text) {
    if (text.length <= LONG_TEXT) return [text];
    const rest = make("button", {
      class: "long", type: "button",
      onclick: () => { rest.replaceWith(text.slice(LONG_TEXT)); },
    }, `… show all ${text.length.toLocaleString("en")} characters`);
    return [text.slice(0, LONG_TEXT), rest];
  }

  function aboutOf(message, id) {
    const about = make(
      "div",
      { class: "about" },
      make("span", { id: `${id}-worth`, class: `worth ${message.trust}` }, message.worth),
      ...message.facts.map((fact) => make("span", {}, fact)),
    );
    if (message.made_by !== null) {
      about.append(make("button", { type: "button", onclick: () => link(message.made_by) },
        `written by step ${steps[message.made_by].number}`));
    } else if (message.maker !== null) {
      about.append(make("span", {}, message.maker));
    }
    if (message.read_by.length) about.append(make("span", {}, `read by ${numbersOf(message.read_by)}`));
    else if (steps.length) about.append(make("span", {}, "read by no step"));
    about.append(detailsOf(message));
    return about;
  }

  /** "steps 1–3, 5" for runs of places. */
  function numbersOf(runs) {
    const number = (place) => steps[place].number;
    const said = runs.map(([from, to]) => (from === to ? number(from) : `${number(from)}–${number(to)}`)).join(", ");
    return `${runs.length === 1 && runs[0][0] === runs[0][1] ? "step" : "steps"} ${said}`;
  }

  const holds = (runs, place) => runs.some(([from, to]) => from <= place && place <= to);

  /** The record by its own names, made when somebody looks. */
  function detailsOf(message) {
    const box = make("details", {
      class: "more",
      ontoggle: () => {
        if (box.open && box.children.length === 1) {
          box.append(make("dl", {}, ...message.details.flatMap(([name, value]) => [
            make("dt", {}, name), make("dd", { dir: "auto" }, value),
          ])));
        }
      },
    }, make("summary", {}, "record"));
    return box;
  }

  function stepRow(place) {
    const step = steps[place];
    const times = step.start === null
      ? "time not known"
      : `${clock(step.start)}–${step.end === null ? "end not known" : clock(step.end)}`;
    const button = make(
      "button",
      { type: "button", "aria-pressed": "false", title: `${step.name} ${step.span}`, onclick: () => link(place) },
      make("span", {}, `LLM step ${step.number}`), make("span", {}, times),
      make("span", {}, step.read), make("span", {}, step.wrote),
      step.speculative && step.writes.length ? make("span", {}, "speculative") : null,
      step.error ? make("span", { class: "error", dir: "auto" }, `failed: ${step.error}`) : null,
    );
    const item = make("li", { class: `step${step.speculative ? " speculative" : ""}` }, button);
    stepRows[place] = { item, button };
    return item;
  }

  /** Shows what a step read and wrote; again, or null, to see everything. */
  function link(place) {
    const list = byId("list");
    if (linked !== null) {
      stepRows[linked].button.setAttribute("aria-pressed", "false");
      stepRows[linked].item.classList.remove("shown");
      for (const { item } of rows) item.classList.remove("reads", "writes");
    }
    linked = place === linked ? null : place;
    list.classList.toggle("linking", linked !== null);
    if (linked !== null) {
      const step = steps[linked];
      stepRows[linked].button.setAttribute("aria-pressed", "true");
      stepRows[linked].item.classList.add("shown");
      for (const [from, to] of step.reads) {
        for (let read = from; read <= to; read += 1) rows[read].item.classList.add("reads");
      }
      for (const written of step.writes) rows[written].item.classList.add("writes");
      show(stepRows[linked].item);
      announce(`Step ${step.number} ${step.read}, ${step.wrote}. Escape shows all messages again.`);
    }
    draw();
  }

  /** Makes a message the one that keys act on; `quiet` leaves the focus and the page where they are. */
  function pick(place, { quiet = false } = {}) {
    if (picked !== place || !rows[place].item.classList.contains("picked")) {
      if (picked !== null) {
        rows[picked].item.classList.remove("picked");
        rows[picked].item.tabIndex = -1;
      }
      picked = place;
      rows[place].item.classList.add("picked");
      rows[place].item.tabIndex = 0;
      reveal(messages[place]);
      draw();
    }
    if (!quiet) {
      rows[place].item.focus({ preventScroll: true });
      show(rows[place].item);
    }
  }

  // -- the timeline -----------------------------------------------------------------------------------
  const SMALLEST_MS = 2000, LARGEST_FIT_MS = 60000, WINDOW_MS = 45000;
  const whole = Math.max(1000, call.duration_ms);
  const view = { from: 0, span: whole <= LARGEST_FIT_MS ? whole : WINDOW_MS };
  const peaks = sound.peaks.map((text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
  const loudest = peaks.map((bins) => bins.reduce((most, bin) => Math.max(most, bin), 1));
  const timeline = byId("timeline"), overview = byId("overview");
  const boxes = { timeline, overview };
  let colours = {};

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const names = ["paper", "line", "ink", "quiet", "user", "assistant", "cut", "step", "doubt"];
    colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  /** The canvas of a strip, as many pixels as the screen has, and its size in CSS pixels. */
  function canvasOf(box) {
    const canvas = box.firstElementChild;
    const { clientWidth: width, clientHeight: height } = box;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height };
  }

  function drawWave(context, channel, from, span, width, middle, half) {
    const lane = sound.channels.indexOf(channel === CALLER ? "caller" : "agent");
    if (lane < 0 || !peaks[lane].length) return;
    const bins = peaks[lane];
    const perPixel = (span / 1000) * (sound.rate / sound.bin) / width;
    const first = (from / 1000) * (sound.rate / sound.bin);
    context.fillStyle = channel === CALLER ? colours.user : colours.assistant;
    for (let x = 0; x < width; x += 1) {
      const low = Math.floor(first + x * perPixel);
      const high = Math.max(low + 1, Math.floor(first + (x + 1) * perPixel));
      let most = 0;
      for (let bin = low; bin < high && bin < bins.length; bin += 1) if (bins[bin] > most) most = bins[bin];
      const top = (most / loudest[lane]) ** 2 * half;
      if (top > 0.2) context.fillRect(x, middle - top, 1, 2 * top);
    }
  }

  function draw() {
    if (!colours.paper) return;
    const { context, width, height } = canvasOf(timeline);
    if (!width) return;
    const axis = 18, stepLane = 14, names = 15; // a message's number stands above or below its lane
    const lane = (height - axis - stepLane - 2 * names) / 2;
    const middles = [names + lane / 2, names + lane + stepLane + lane / 2];
    const x = (ms) => ((ms - view.from) / view.span) * width;
    const until = view.from + view.span;

    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    drawAxis(context, x, width, height, axis);
    for (const channel of [CALLER, AGENT]) drawWave(context, channel, view.from, view.span, width, middles[channel], lane / 2 - 3);

    context.strokeStyle = colours.quiet;
    for (const [at, start, end] of sound.lost) { // audio that is missing is crossed out
      const top = middles[sound.channels[at] === "caller" ? CALLER : AGENT];
      context.setLineDash([2, 3]);
      context.strokeRect(x(start), top - 6, Math.max(1, x(end) - x(start)), 12);
      context.setLineDash([]);
    }
    for (const [place, step] of steps.entries()) {
      if (step.start === null || step.start > until || (step.end ?? step.start) < view.from) continue;
      const left = x(step.start), wide = Math.max(3, x(step.end ?? step.start) - left);
      context.fillStyle = context.strokeStyle = colours.step;
      context.globalAlpha = linked === null || linked === place ? 1 : 0.3;
      if (step.speculative) {
        context.setLineDash([2, 2]);
        context.strokeRect(left, names + lane + 4.5, wide, 5);
        context.setLineDash([]);
      } else {
        context.fillRect(left, names + lane + 4, wide, 6);
      }
      context.globalAlpha = 1;
    }
    const last = [-Infinity, -Infinity]; // where the numbers of a lane end, so that none stands on another
    for (const [place, message] of messages.entries()) drawMessage(context, place, message, { x, middles, lane, until, last });
    drawHead();
  }

  function drawMessage(context, place, message, { x, middles, lane, until, last }) {
    const channel = LANE[message.role] ?? AGENT;
    const top = middles[channel] - lane / 2 + 1, high = lane - 2;
    const dim = linked !== null && !holds(steps[linked].reads, place) && !steps[linked].writes.includes(place);
    const tone = !message.committed ? colours.quiet : channel === CALLER ? colours.user : colours.assistant;
    for (const [number, [start, end]] of message.blocks.entries()) {
      if (end < view.from || start > until) continue;
      const left = x(start), wide = Math.max(2, x(end) - left);
      context.fillStyle = context.strokeStyle = tone;
      context.globalAlpha = dim ? 0.05 : place === picked ? 0.24 : 0.11;
      context.fillRect(left, top, wide, high);
      context.globalAlpha = dim ? 0.2 : place === picked ? 1 : 0.55;
      context.lineWidth = place === picked ? 1.5 : 1;
      if (!message.committed) context.setLineDash([3, 2]);
      context.strokeRect(left + 0.5, top + 0.5, wide - 1, high - 1);
      context.setLineDash([]);
      context.lineWidth = 1;
      context.globalAlpha = dim ? 0.4 : 1;
      if (number === 0 && left >= last[channel]) {
        const label = `#${message.seq}`, room = context.measureText(label).width;
        const at = Math.max(0, Math.min(left, timeline.clientWidth - room));
        context.fillText(label, at, channel === CALLER ? top - 8 : top + high + 8);
        last[channel] = at + room + 6;
      }
      context.globalAlpha = 1;
    }
    if (message.state === "interrupted" && message.cut !== null && message.cut >= view.from && message.cut <= until) {
      context.fillStyle = colours.cut;
      context.fillRect(x(message.cut) - 1, top - 1, 2, high + 2);
    }
  }

  function drawAxis(context, x, width, height, axis) {
    const nice = [100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000];
    const every = nice.find((ms) => (ms / view.span) * width >= 64) ?? nice[nice.length - 1];
    const y = height - axis + 2.5;
    context.strokeStyle = colours.line;
    context.fillStyle = colours.quiet;
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(Math.min(width, x(call.duration_ms)), y);
    for (let ms = Math.ceil(view.from / every) * every; ms <= Math.min(view.from + view.span, call.duration_ms); ms += every) {
      const at = Math.round(x(ms)) + 0.5;
      context.moveTo(at, y);
      context.lineTo(at, y + 4);
      const label = clock(ms, every < 1000 ? 1 : 0);
      const wide = context.measureText(label).width;
      if (at + wide / 2 <= width) context.fillText(label, Math.max(0, at - wide / 2), y + 10);
    }
    context.stroke();
  }

  function drawOverview() {
    overview.hidden = view.span >= whole;
    if (overview.hidden || !colours.paper) return;
    const { context, width, height } = canvasOf(overview);
    for (const channel of [CALLER, AGENT]) drawWave(context, channel, 0, whole, width, height * (channel === CALLER ? 0.25 : 0.75), height / 4 - 1);
    for (const message of messages) {
      context.fillStyle = message.role === "user" ? colours.user : colours.assistant;
      context.globalAlpha = sound.channels.length ? 0.15 : 0.5;
      for (const [start, end] of message.blocks) {
        context.fillRect((start / whole) * width, message.role === "user" ? 0 : height / 2, Math.max(1, ((end - start) / whole) * width), height / 2);
      }
      context.globalAlpha = 1;
      if (message.state === "interrupted" && message.cut !== null) {
        context.fillStyle = colours.cut;
        context.fillRect((message.cut / whole) * width, height / 2, 1, height / 2);
      }
    }
  }

  /** The playhead and the window are elements, so that moving them draws nothing anew. */
  function drawHead() {
    showClock();
    const place = (box, from, span) => {
      const mark = box.querySelector(".head");
      const x = ((head - from) / span) * box.clientWidth;
      mark.hidden = x < 0 || x > box.clientWidth;
      mark.style.transform = `translateX(${Math.min(x, box.clientWidth - 1)}px)`;
    };
    if (playing?.follow && (head > view.from + view.span * 0.95 || head < view.from)) {
      move(head - view.span * 0.05);
      return;
    }
    place(timeline, view.from, view.span);
    if (overview.hidden) return;
    place(overview, 0, whole);
    const frame = overview.querySelector(".window");
    frame.style.width = `${Math.max(4, (view.span / whole) * overview.clientWidth)}px`;
    frame.style.transform = `translateX(${(view.from / whole) * overview.clientWidth}px)`;
  }

  function move(from, span = view.span) {
    view.span = Math.min(whole, Math.max(Math.min(SMALLEST_MS, whole), span));
    view.from = Math.max(0, Math.min(from, whole - view.span));
    byId("zoom-all").disabled = byId("zoom-out").disabled = view.span >= whole;
    byId("zoom-in").disabled = view.span <= SMALLEST_MS;
    const shown = !overview.hidden;
    if (shown !== view.span < whole) {
      drawOverview();
      cover();
    }
    draw();
  }

  const zoom = (factor, around = view.from + view.span / 2) =>
    move(around - (around - view.from) * factor, view.span * factor);

  /** Moves the window to where a message is, if it is outside. */
  function reveal({ blocks }) {
    if (!blocks.length) return;
    const [start] = blocks[0];
    const end = Math.min(blocks[blocks.length - 1][1], start + view.span);
    if (start < view.from || end > view.from + view.span) move((start + end - view.span) / 2);
  }

  function msAt(box, event) {
    const { left, width } = box.getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (event.clientX - left) / width));
    return box === overview ? part * whole : view.from + part * view.span;
  }

  /** The message under the pointer, the shortest of several. */
  function messageAt(event) {
    const ms = msAt(timeline, event);
    const { top, height } = timeline.getBoundingClientRect();
    const channel = event.clientY - top < (height - 18) / 2 ? CALLER : AGENT;
    const slack = (view.span / timeline.clientWidth) * 3;
    let best = null, shortest = Infinity;
    for (const [place, message] of messages.entries()) {
      if ((LANE[message.role] ?? AGENT) !== channel) continue;
      for (const [start, end] of message.blocks) {
        if (ms >= start - slack && ms <= end + slack && end - start < shortest) [best, shortest] = [place, end - start];
      }
    }
    return best;
  }

  function followPointer() {
    let grip = null;
    timeline.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, from: view.from, moved: false };
      timeline.setPointerCapture(event.pointerId);
    });
    timeline.addEventListener("pointermove", (event) => {
      if (!grip) return;
      const by = event.clientX - grip.x;
      if (Math.abs(by) > 4) grip.moved = true;
      if (grip.moved) move(grip.from - (by / timeline.clientWidth) * view.span);
    });
    timeline.addEventListener("pointercancel", () => { grip = null; });
    timeline.addEventListener("pointerup", (event) => {
      const click = grip && !grip.moved;
      grip = null;
      if (!click) return;
      const place = messageAt(event);
      if (place !== null) pick(place);
      seek(msAt(timeline, event));
    });
    timeline.addEventListener("dblclick", (event) => {
      const place = messageAt(event);
      if (place !== null) playMessage(place);
    });
    timeline.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(1.0015 ** event.deltaY, msAt(timeline, event));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        move(view.from + (event.deltaX / timeline.clientWidth) * view.span);
      }
    }, { passive: false });
    const drag = (event) => {
      if (event.type === "pointerdown") overview.setPointerCapture(event.pointerId);
      else if (!overview.hasPointerCapture(event.pointerId)) return;
      move(msAt(overview, event) - view.span / 2);
    };
    overview.addEventListener("pointerdown", drag);
    overview.addEventListener("pointermove", drag);
    byId("zoom-in").addEventListener("click", () => zoom(0.5));
    byId("zoom-out").addEventListener("click", () => zoom(2));
    byId("zoom-all").addEventListener("click", () => move(0, whole));
    byId("play").addEventListener("click", togglePlay);
  }

  // -- keys -------------------------------------------------------------------------------------------
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const own = event.target.closest?.("button, a, summary, input, select, textarea");
    switch (event.key) {
      case " ":
        if (own) return;
        if (playing) pause();
        else if (picked !== null && messages[picked].ranges.length) playMessage(picked);
        else togglePlay();
        break;
      case "Enter":
        if (own || picked === null) return;
        playMessage(picked);
        break;
      case "ArrowDown":
      case "ArrowUp": {
        if (!messages.length || event.shiftKey) return;
        const begun = rows[picked].item.contains(document.activeElement);
        const next = begun ? picked + (event.key === "ArrowDown" ? 1 : -1) : picked;
        pick(Math.max(0, Math.min(messages.length - 1, next)));
        break;
      }
      case "ArrowLeft":
      case "ArrowRight":
        seek(head + (event.key === "ArrowLeft" ? -5000 : 5000));
        break;
      case "Escape":
        stop();
        if (linked !== null) link(null);
        break;
      default:
        return;
    }
    event.preventDefault();
  }

  function pickFromAddress() {
    const place = Number(/^#m(\d+)$/.exec(location.hash)?.[1] ?? NaN);
    if (rows[place]) pick(place);
  }

  /** How much of the window the player covers, so that what is scrolled to is not under it. */
  function cover() {
    const player = byId("player");
    const covered = getComputedStyle(player).position === "sticky" ? player.offsetHeight + 12 : 12;
    document.documentElement.style.setProperty("--covered", `${covered}px`);
  }

  function redraw() {
    readColours();
    move(view.from);
    drawOverview();
    cover();
    draw();
  }

  fillHead();
  fillList();
  byId("play").disabled = !voice;
  byId("legend").textContent = sound.channels.length || messages.length
    ? "blue: the caller · violet: the agent, as played · ochre: LLM steps · red: where the agent was cut off · dashed: outside the conversation"
    : "";
  timeline.setAttribute("aria-label",
    `Timeline of ${clock(call.duration_ms, 0)}: two voices, ${messages.length} messages, ${steps.length} LLM steps. The list below says the same.`);
  if (picked !== null) rows[picked].item.classList.add("picked");
  overview.hidden = true;
  followPointer();
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", pickFromAddress);
  addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; redraw(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.print; redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(timeline);
  showPlaying();
  redraw();
  pickFromAddress();
})();
