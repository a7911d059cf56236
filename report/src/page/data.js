// The data of the page, and small tools to build it with. A series is the values of one metric over the steps:
// {split, environment, policy, agent, metric, steps, values, lows, highs}; a row is one value of it, with its step.
'use strict';
const DATA = JSON.parse(document.getElementById('data').textContent);
const COLUMNS = ['split', 'environment', 'policy', 'agent', 'metric'];
const RUNS = DATA.runs.map((run, index) => {
  const series = run.series.map(({of, steps, values, lows, highs}) => ({
    ...Object.fromEntries(COLUMNS.map((column, place) => [column, run.names[of[place]]])), steps: steps || run.drawn, values, lows, highs,
  }));
  return {...run, index, series, byMetric: Map.groupBy(series, one => one.metric)};
});

// Runs that differ in their seed alone (…/seed-1, …/seed-2) are one method: one color, one mean curve.
const METHODS = [];
for (const run of RUNS) {
  const name = run.name.replace(/[/_-]?seed[-_]?\d+$/, '') || run.name;
  if (!METHODS.some(method => method.name === name)) METHODS.push({name, index: METHODS.length, runs: []});
  run.method = METHODS.find(method => method.name === name);
  run.method.runs.push(run);
}
for (const method of METHODS) if (method.runs.length === 1) method.name = method.runs[0].name;

// The series of a run that have all the given values, and their rows.
const find = (run, wanted) => (wanted.metric === undefined ? run.series : run.byMetric.get(wanted.metric) || []).filter(one =>
  COLUMNS.every(column => wanted[column] === undefined || one[column] === wanted[column]));
const rows = one => one.rows ||= one.values.map((value, place) => ({
  step: one.steps[place], value, low: one.lows?.[place], high: one.highs?.[place],
  split: one.split, environment: one.environment, policy: one.policy, agent: one.agent, metric: one.metric,
}));
const pick = (run, wanted) => find(run, wanted).flatMap(rows);
// The different values of a column, in order of appearance.
const distinct = (list, column) => [...new Set(list.map(one => one[column]))];
// Metrics as points of a curve.
const points = metrics => metrics.map(({step, value, low, high}) => ({x: step, y: value, low, high}));
const last = list => list[list.length - 1];
const sum = list => list.reduce((all, one) => all + one, 0);
const mean = list => sum(list) / list.length;
// As Math.min and Math.max, of lists of any length.
const least = (list, start = Infinity) => list.reduce((best, one) => one < best ? one : best, start);
const most = (list, start = -Infinity) => list.reduce((best, one) => one > best ? one : best, start);
// Metrics added up by step.
const totals = metrics => {
  const steps = new Map();
  for (const {step, value} of metrics) steps.set(step, (steps.get(step) || 0) + value);
  return [...steps].map(([x, y]) => ({x, y}));
};

const make = (create) => (tag, attributes = {}, ...children) => {
  const element = create(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return element;
};
const h = make(tag => document.createElement(tag));
const s = make(tag => document.createElementNS('http://www.w3.org/2000/svg', tag));

const percent = value => `${(100 * value).toFixed(1)} %`;
const count = value => Math.round(value).toLocaleString('en-US');
const raised = power => [...String(+power)].map(digit => '⁰¹²³⁴⁵⁶⁷⁸⁹'[digit] || '⁻').join('');
// A number with as many digits as a reader can use.
const short = value => {
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)} G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  if (size < 1e-3) {
    const [digits, power] = value.toExponential(1).split('e');
    return `${digits.replace('-', '−')}·10${raised(power)}`;
  }
  return String(+value.toPrecision(3)).replace('-', '−');
};
const signed = value => (value > 0 ? '+' : value < 0 ? '−' : '') + Math.abs(value).toFixed(2);
const seconds = value => value >= 120 ? `${(value / 60).toFixed(1)} min` : `${+value.toPrecision(3)} s`;
const plural = (number, thing) => `${count(number)} ${thing}${number === 1 ? '' : 's'}`;
