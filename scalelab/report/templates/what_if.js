// What if: the choice under other limits, looked up in the answer's table of steps.
// It repeats what ScaleLab does with limits, step by step; it holds no law.
// Returns the first of the rows that are least by one key, of these by the next, ...
function least(rows, ...keys) {
  const compare = (one, other) => keys.map((key) => key(one) - key(other)).find((by) => by) ?? 0;
  return rows.reduce((best, row) => (compare(row, best) < 0 ? row : best));
}
// Returns the class of a row's chance to take no more than this time.
function classOf(table, row, within) {
  const [median] = row.time_s;
  const limit = table.places * Math.min(within / median, table.never / 2);
  let place = 0;
  const above = row.steps.findIndex((step) => (place += step) > limit);
  return table.classes[above < 0 ? row.steps.length : above];
}
// Chooses a row. Limits are infinite where there is none; the budget is in device-hours.
function choose(table, deadline, budget, confidence) {
  const level = table.confidences.indexOf(confidence);
  if (deadline === Infinity && budget === Infinity) {
    const row = table.rows[table.unlimited[level]];
    const { sure, chance } = classOf(table, row, Infinity);
    return { row, meets: sure > level, chance };
  }
  const known = table.rows.map((row, at) => {
    const [time] = row.time_s, hours = time * row.hours_per_s;
    const chances = classOf(table, row, Math.min(deadline, budget / row.hours_per_s));
    const amount = deadline === Infinity ? time : hours;
    const over = Math.max(time / deadline, hours / budget);
    return { ...chances, row, at, time, hours, amount, over, isSure: chances.sure > level };
  });

  const ofEachSize = [...Map.groupBy(known, (each) => each.row.size).values()];
  const best = ofEachSize.map((alike) => least(
    alike,
    (each) => -each.isSure,
    (each) => (each.isSure ? 0 : -each.rounded),
    (each) => each.row.margin * (each.isSure ? each.amount : each.over),
  ));
  best.sort((one, other) => one.row.size - other.row.size);

  const meeting = best.filter((each) => each.isSure), meets = meeting.length > 0;
  const likeliest = Math.max(...best.map((each) => each.counted));
  const among = meets ? meeting : best.filter((each) => each.counted === likeliest);
  const taken = (each) => (meets ? each.amount : each.over);
  const bound = (1 + table.clearly) * Math.min(...among.map(taken));
  let found = least(
    among.filter((each) => taken(each) <= bound),
    (each) => -(each.row.basis === "measured"),
    (each) => (meets ? each.time * each.hours : each.amount),
  );

  // what is clearly better in one, and no worse in the other
  let left = meeting, beating;
  do {
    left = left.filter((each) => each !== found);
    beating = left.filter((each) => found.row.beaten_by.includes(each.at));
    if (beating.length) found = least(beating, (each) => each.time);
  } while (beating.length);
  return { row: found.row, meets, chance: found.chance };
}

const STOPS = 100; // of a slider; the last one is no limit
const SECONDS = [
  [86400, "days", 2 * 86400], [3600, "h", 7200], [60, "min", 120], [1, "s", 1], [1e-3, "ms", 0],
];
const text = (number) => number.toLocaleString("en", { maximumSignificantDigits: 15 });
// Writes a limit in the first unit that is not too large, as users and commands have it.
function written(limit, units, digits) {
  const [size, unit] = units.find(([, , from]) => limit >= from);
  const amount = Number((limit / size).toPrecision(digits));
  return { limit: amount * size, amount, unit, text: `${text(amount)} ${unit}` };
}
// Makes a slider of limits; what it returns reads it, in some units, and sets it exactly.
function slider(label, amounts, asked, onInput) {
  const input = label.querySelector("input"), output = label.querySelector("output");
  const low = Math.min(...amounts) / 1.25, high = 1.25 * Math.max(...amounts);
  const steps = (STOPS - 1) / Math.log(high / low);
  let exact = null;
  Object.assign(input, { min: 0, max: STOPS, step: 1, value: STOPS });
  input.addEventListener("input", () => {
    exact = null;
    onInput();
  });
  const set = (limit) => {
    exact = limit;
    input.value = Math.min(STOPS - 1, Math.round(steps * Math.log(limit / low)));
  };
  if (asked !== undefined) set(asked);
  const read = (units, scale) => {
    const at = Number(input.value), limit = exact ?? low * Math.exp(at / steps);
    const isAny = at === STOPS && exact === null;
    const found = isAny ? null : written(scale * limit, units, exact === null ? 2 : 12);
    output.textContent = found ? found.text : "any";
    input.setAttribute("aria-valuetext", output.textContent);
    return found;
  };
  return { read, set };
}

function followLimits(answer, redraw) {
  const box = answer.querySelector(".what-if");
  if (!box) return;
  const table = JSON.parse(box.querySelector("script").textContent);
  const { currency, hour_word: hourWord } = table;
  let paid = table.price; // of a device-hour, as the reader has it; null: not known
  const [ofDeadline, ofBudget, ofPrice, ofConfidence] = box.querySelectorAll("label");
  const price = ofPrice.querySelector("input"), sure = ofConfidence.querySelector("select");
  const then = box.querySelector(".then"), command = box.querySelector("pre");
  const times = table.rows.map((row) => row.time_s[0]);
  const hours = table.rows.map((row) => row.time_s[0] * row.hours_per_s);
  const { time, money, device_hours: deviceHours } = table.limited;
  const askedHours = money === undefined ? deviceHours : money / table.price;
  const deadline = slider(ofDeadline, times, time, answerAgain);
  const budget = slider(ofBudget, hours, askedHours, answerAgain);
  for (const confidence of table.confidences) {
    sure.add(new Option(`${Number((100 * confidence).toPrecision(12))}%`, confidence));
  }
  sure.value = table.confidence;
  price.value = table.price ?? "";
  sure.addEventListener("input", answerAgain);
  price.addEventListener("input", () => {
    const [before, money] = [paid, read().most];
    paid = Number(price.value) > 0 ? Number(price.value) : table.price;
    // a budget of money stays what it is at another price
    if (money && before !== null && paid !== null) budget.set(money.limit / paid);
    answerAgain();
  });
  box.hidden = false;
  read();

  function read() {
    const inHours = [[1, hourWord, 0.01], [1 / 3600, hourWord.replace(/h$/, "s"), 0]];
    const units = paid === null ? inHours : [[1, currency, 0]];
    return { within: deadline.read(SECONDS, 1), most: budget.read(units, paid ?? 1) };
  }

  function answerAgain() {
    const { within, most } = read(), confidence = Number(sure.value);
    const mostTime = within ? within.limit : Infinity;
    const mostHours = most ? most.limit / (paid ?? 1) : Infinity;
    const { row, meets, chance } = choose(table, mostTime, mostHours, confidence);
    const asked = [within, most].filter(Boolean).map((each) => `< ${each.text}`);
    const met = [...asked, table.target].filter(Boolean).join(" and ");
    const spent = row.time_s[0] * row.hours_per_s * paid;
    const cost = paid === null ? "" : `, ${text(Number(spent.toPrecision(3)))} ${currency}`;
    const missed = met ? `Nothing meets ${met}. Closest:` : "No time is sure. Use";
    then.textContent = `${meets ? "Use" : missed} ${row.use}: `
      + `${row.takes}, ${row.spends}${cost}.${met ? ` Chance of meeting ${met}: ${chance}.` : ""}`;
    const options = [`--confidence ${confidence}`];
    if (within) options.push(`--max-time ${within.amount}${within.unit.replace("days", "d")}`);
    if (paid !== null) options.push(`--price ${paid}${currency}`);
    if (most && paid !== null) options.push(`--max-cost ${most.amount}${currency}`);
    if (most && paid === null) {
      options.push(`--max-gpu-hours ${most.amount}gpu-${most.unit.slice(-1)}`);
    }
    command.textContent = table.command;
    for (const option of options) {
      const unbroken = Object.assign(document.createElement("span"), { className: "option" });
      unbroken.textContent = option;
      command.append(" ", unbroken);
    }
    command.hidden = false;
    redraw(row, within && within.limit, mostHours, table.price, paid);
  }
}
for (const answer of document.querySelectorAll(".answer")) followLimits(answer, showPicture(answer));
