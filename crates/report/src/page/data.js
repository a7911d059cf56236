// The data of the page, and small tools to build it with. A run has its summary (run_summary.rs) and charts (chart/mod.rs); a method is the runs
// that differ only in their seed (methods.rs).
'use strict';
const DATA = JSON.parse(document.getElementById('data').textContent);
const RUNS = DATA.runs.map((run, index) => ({...run, index}));
const METHODS = DATA.methods;
const SEVERAL = RUNS.length > 1;

// The different values of a column, in order of appearance.
const distinct = (list, column) => [...new Set(list.map(one => one[column]))];
const last = list => list[list.length - 1];
const sum = list => list.reduce((all, one) => all + one, 0);
// As Math.min and Math.max, of lists of any length.
const least = (list, start = Infinity) => list.reduce((best, one) => one < best ? one : best, start);
const most = (list, start = -Infinity) => list.reduce((best, one) => one > best ? one : best, start);

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

const percent = value => `${(100 * value).toFixed(value > 0 && value < 0.001 ? 3 : 1)}\u00a0%`;
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
