// Puts the page together: the head with the numbers that matter first, the sections, and the choice of a run.

const first = list => list[0];
// The success of an evaluation over all environments: the only one, or their mean.
function heldOut(run) {
  const steps = Map.groupBy(pick(run, {metric: 'success', split: 'test'}), row => row.step);
  return [...steps].sort(([a], [b]) => a - b).map(([step, list]) =>
    ({step, value: mean(list.map(row => row.value)), ...(list.length === 1 ? {low: list[0].low, high: list[0].high} : {})}));
}
const range = row => Number.isFinite(row.low) ? `95 % interval ${(100 * row.low).toFixed(1)}–${percent(row.high)}` : 'mean over environments';
const total = (run, metric) => sum(pick(run, {metric, split: 'train', policy: ''}).filter(row => metric === 'completion_tokens' || row.agent === '').map(row => row.value));
const largest = (run, metric) => most(pick(run, {metric}).map(row => row.value));

function status(run) {
  const steps = run.steps === 0 ? 'no step committed yet' : `${plural(run.steps, 'step')} committed`;
  return run.begun === null ? steps : `${steps}; step ${run.begun} was begun and is not committed: the run is in progress, or was stopped`;
}

function tiles(run) {
  const tile = (label, value, more) => value && h('div', {class: 'tile'}, h('div', {class: 'label'}, label), h('div', {class: 'value'}, value), h('div', {class: 'more'}, more));
  const evaluations = heldOut(run), now = last(evaluations), before = first(evaluations);
  const training = last(pick(run, {metric: 'success', split: 'train'}));
  const groups = total(run, 'groups'), flat = total(run, 'groups_flat'), gap = largest(run, 'sampling/logp_difference_max');
  const tokens = total(run, 'completion_tokens');
  return h('div', {class: 'tiles'},
    now && tile('Success, held out', evaluations.length > 1 ? [h('small', {}, `${percent(before.value)} → `), percent(now.value)] : percent(now.value), [range(now), h('br'), `after step ${now.step}`]),
    training && tile('Success in training', percent(training.value), `step ${training.step}, sampled`),
    tokens > 0 && tile('Tokens generated', short(tokens), run.drawn_every > 1 ? `in training, at every ${run.drawn_every}th step` : 'in training, evaluations aside'),
    groups > 0 && tile('Groups that taught', percent(1 - flat / groups), `of ${count(groups)}; the rest were flat`),
    Number.isFinite(gap) && tile('Sampler against trainer', short(gap), 'nats, the largest difference of any token'));
}

// A row for each run; before the runs of a method their means, with the lowest and the highest seed.
function comparison() {
  const facts = run => {
    const evaluations = heldOut(run), groups = total(run, 'groups');
    return {run, before: first(evaluations), now: last(evaluations), tokens: total(run, 'completion_tokens'),
      taught: groups ? 1 - total(run, 'groups_flat') / groups : NaN, gap: largest(run, 'sampling/logp_difference_max')};
  };
  const told = (value, write) => Number.isFinite(value) ? write(value) : '–';
  const span = now => Number.isFinite(now?.low) ? `${percent(now.value)} (${percent(now.low)} to ${percent(now.high)})` : told(now?.value, percent);
  const single = ({run, before, now, tokens, taught, gap}) =>
    [run.method.runs.length > 1 ? run.name.slice(run.method.name.length).replace(/^[/_-]/, '') : run.name, count(run.steps), told(before?.value, percent), span(now), short(tokens), told(taught, percent), told(gap, short)];
  const all = (method, rows) => {
    const ends = rows.map(row => row.now?.value).filter(Number.isFinite);
    return [`${method.name}, ${rows.length} seeds`, count(mean(rows.map(row => row.run.steps))), told(mean(rows.map(row => row.before?.value)), percent),
      ends.length === rows.length ? span({value: mean(ends), low: Math.min(...ends), high: Math.max(...ends)}) : '–', short(mean(rows.map(row => row.tokens))),
      told(mean(rows.map(row => row.taught)), percent), told(Math.max(...rows.map(row => row.gap)), short)];
  };
  const heads = ['Run', 'Steps', 'Held out, first', 'Held out, last', 'Tokens generated', 'Groups that taught', 'Largest difference, nats'];
  const row = (cells, kind) => h('tr', {class: kind}, cells.map((cell, place) => h('td', {class: place ? 'number' : ''}, cell)));
  return h('div', {class: 'scroll'}, h('table', {class: 'facts'}, h('tr', {}, heads.map((head, place) => h('th', {class: place ? 'number' : ''}, head))),
    METHODS.flatMap(method => {
      const rows = method.runs.map(facts);
      return rows.length === 1 ? row(single(rows[0])) : [row(all(method, rows), 'mean'), ...rows.map(one => row(single(one), 'seed'))];
    })));
}

function summary(run) {
  const {env, workflow, policies, branches, tasks, turns, seed} = run.settings;
  const who = policies === 'shared' ? 'one policy for all roles' : policies === 'per-role' ? 'one policy for each role' : policies && 'policies of its own';
  return [env && `${env}${workflow ? `, workflow ${workflow}` : ''}`, who, tasks && `${tasks} episodes a step`, branches && `${branches} candidates a turn`,
    turns && `at most ${turns} turns`, seed && `seed ${seed}`].filter(Boolean).join(' · ');
}

function theme() {
  return h('button', {class: 'theme', title: 'light or dark', onclick: () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  }}, 'Light / dark');
}

// A page of a run in progress that is open in a tab: loads itself again while its reader wants that.
function renewal() {
  const [name, every] = ['renew', 10];
  const on = () => sessionStorage.getItem(name) === '1';
  const button = h('button', {class: 'theme', title: `load the page again every ${every} seconds`, 'aria-pressed': String(on()), onclick: () => {
    sessionStorage.setItem(name, on() ? '0' : '1');
    button.setAttribute('aria-pressed', String(on()));
  }}, 'Renew');
  setInterval(() => { if (on() && !document.hidden) location.reload(); }, 1000 * every);
  return button;
}

const SECTIONS = [['learning', 'Learning'], ['groups', 'Groups'], ['rewards', 'Rewards'], ['cost', 'Tokens and time'], ['episodes', 'Episodes'], ['settings', 'Settings']];

function main() {
  const details = h('div', {});
  const show = index => {
    const run = RUNS[index];
    details.replaceChildren(...[accounts(run), rewards(run), cost(run), episodes(run), settings(run)].filter(Boolean));
  };
  const chooser = SEVERAL && h('section', {}, h('h2', {}, 'One run in detail'), h('div', {class: 'row', style: 'margin-top:10px'}, RUNS.map(run =>
    h('button', {'aria-pressed': String(run.index === 0), onclick: event => {
      for (const button of event.currentTarget.parentElement.children) button.setAttribute('aria-pressed', String(button === event.currentTarget));
      show(run.index);
    }}, run.name))));
  document.getElementById('page').append(...[
    h('header', {}, h('div', {}, h('div', {class: 'eyebrow'}, 'Troupe · report'), h('h1', {}, SEVERAL ? plural(RUNS.length, 'run') : RUNS[0].name),
      SEVERAL ? null : [h('p', {class: 'lead'}, summary(RUNS[0])), h('p', {class: 'lead'}, status(RUNS[0]))]), RUNS.some(run => run.begun !== null) && renewal(), theme()),
    SEVERAL ? comparison() : [tiles(RUNS[0]), loop(RUNS[0])].filter(Boolean),
    h('nav', {style: 'margin-top:24px'}, SECTIONS.map(([id, name]) => h('a', {href: `#${id}`}, name))),
    learning(), ...(chooser ? [chooser] : []), details,
    h('footer', {}, h('p', {class: 'note'},
      RUNS.filter(run => run.drawn_every > 1).map(run => `Of the ${count(run.steps)} steps of ${run.name} every ${run.drawn_every}th is drawn. `),
      DATA.episodes_left_out > 0 && `${plural(DATA.episodes_left_out, 'chosen episode')} did not fit into a page of this size and ${DATA.episodes_left_out === 1 ? 'is' : 'are'} left out. `,
      `Made by report ${DATA.version} from the streams of the run directory; report RUN --csv FILE writes every number.`))].flat().filter(Boolean));
  show(0);
}
main();
// When the page was drawn, for benches/page.sh: milliseconds after it was opened.
requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.drawn = Math.round(performance.now()); }));
