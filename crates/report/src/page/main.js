// Puts the page together: the head with the numbers that matter first, the sections, and the choice of a run.

const range = success => success.interval ? `95 % interval ${(100 * success.interval[0]).toFixed(1)}–${percent(success.interval[1])}` : 'mean over environments';

function status(run) {
  const steps = run.steps === 0 ? 'no step committed yet' : `${plural(run.steps, 'step')} committed`;
  return run.begun === null ? steps : `${steps}; step ${run.begun} was begun and is not committed: the run is in progress, or was stopped`;
}

function tiles({summary}) {
  const tile = (label, value, more, bad) => h('div', {class: 'tile'}, h('div', {class: 'label'}, label), h('div', {class: `value${bad ? ' bad' : ''}`}, value), h('div', {class: 'more'}, more));
  const {first, best, now, training, returns, tokens, teaching, gap, cut} = summary;
  const later = now && now.step !== best.step ? `best after step ${best.step}; last ${percent(now.value)} after step ${now.step}` : best && `after step ${best.step}`;
  const all = [
    best && tile('Best success, held out', now.step > first.step ? [h('small', {}, `${percent(first.value)} → `), percent(best.value)] : percent(best.value), [range(best), h('br'), later]),
    returns && tile('Mean return, held out', returns[1].step > returns[0].step ? [h('small', {}, `${short(returns[0].value)} → `), short(returns[1].value)] : short(returns[1].value),
      [returns[1].interval ? `95 % interval ${returns[1].interval.map(short).join('–')}` : 'mean over environments', h('br'), `last, after step ${returns[1].step}`]),
    training && tile('Success in training', percent(training.value), `step ${training.step}, sampled`),
    cut >= 0.2 && tile('Answers cut', percent(cut), 'ended at the token limit', true),
    tokens > 0 && tile('Tokens generated', short(tokens), 'in training, evaluations aside'),
    teaching !== null && tile('Groups that taught', percent(teaching), `of ${count(summary.group_totals.seen)}; the rest were flat`),
    gap !== null && tile('Sampler against trainer', short(gap), 'nats, the largest difference of any token')];
  return all.some(Boolean) && h('div', {class: 'tiles'}, all);
}

const advice = ({summary}) => summary.advice.length > 0 && h('div', {class: 'advice'}, summary.advice.map((text, place) => h('p', {}, place === 0 && h('b', {}, 'Advice. '), text.split(/(--[a-z-]+)/).map(part => part.startsWith('--') ? h('code', {}, part) : part))));

// A row for each run; before the seeds of a method their mean, its standard deviation and its interval.
function comparison() {
  const orDash = (value, write) => Number.isFinite(value) ? write(value) : '–';
  const between = interval => interval ? `${percent(interval[0])} to ${percent(interval[1])}` : '–';
  const single = run => {
    const {first, best, now, tokens, teaching, gap} = run.summary;
    const seed = run.settings.seed && `seed ${run.settings.seed}`;
    return [[run.name, seed], count(run.steps), orDash(first?.value, percent), orDash(now?.value, percent), between(now?.interval), orDash(best?.value, percent), short(tokens), orDash(teaching ?? NaN, percent), orDash(gap ?? NaN, short)];
  };
  const whole = method => [[method.name, `${plural(method.runs.length, 'seed')}: ${method.seeds.join(', ')}`], count(method.steps), orDash(method.first?.mean, percent),
    orDash(method.now?.mean, value => `${percent(value)}${Number.isFinite(method.now.deviation) ? ` ± ${(100 * method.now.deviation).toFixed(1)}` : ''}`),
    between(method.now?.interval), orDash(method.best?.mean, percent), short(method.tokens), orDash(method.teaching ?? NaN, percent), orDash(method.gap ?? NaN, short)];
  const heads = ['Run', 'Steps', 'Held out, first', 'Last', '95 % interval', 'Best', 'Tokens in all', 'Groups that taught', 'Sampler against trainer'];
  const row = ([[name, more], ...cells], kind) => h('tr', {class: kind}, h('td', {}, name, more && h('small', {}, more)), cells.map((text, place) => h('td', {class: 'number', 'data-head': heads[place + 1]}, text)));
  return [h('div', {class: 'scroll'}, h('table', {class: 'facts compared'}, h('tr', {}, heads.map((head, place) => h('th', {class: place ? 'number' : ''}, head))),
    METHODS.flatMap(method => {
      const runs = method.runs.map(index => RUNS[index]);
      const [only] = runs;
      if (runs.length > 1) return [row(whole(method), 'mean'), ...runs.map(run => row(single(run), 'seed'))];
      const [[name, seed], ...cells] = single(only);
      return [row([[method.name, [method.name !== name && name, seed].filter(Boolean).join(', ')], ...cells], '')];
    }))),
  h('p', {class: 'note'}, 'Runs that differ only in their seed are one method, called by what it does otherwise than the others. Over seeds: mean ± standard deviation, and Student’s interval of the mean. report compare takes differences seed by seed.')];
}

// Who plays: one policy or several, and what they began as.
function players({policies = '', model, adapter}) {
  const from = model ? ` from ${model}` : '';
  if (policies === 'shared') return `one policy for all roles${from}`;
  if (policies === 'per-role') return `one policy for each role${from}`;
  if (policies === 'adapter-per-role') return `an adapter${adapter ? ` (${adapter})` : ''} for each role over ${model || 'the tiny preset'}`;
  return policies && `policies handed in: ${policies.split(' ').map(pair => { const [agent, path = ''] = pair.split(/=(.*)/); return `${agent} ${path.includes('://') ? path : path.split('/').slice(-2).join('/')}`; }).join(', ')}`;
}

function summary({settings}) {
  const {env, workflow, branches, tasks, turns, seed} = settings;
  return [env && `${env}${workflow ? `, workflow ${workflow}` : ''}`, players(settings), tasks && `${tasks} episodes a step`, branches && `${branches} candidates a turn`,
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

const SECTIONS = [['learning', 'Learning'], ['groups', 'Groups'], ['rewards', 'Rewards'], ['cost', 'Cost'], ['episodes', 'Episodes'], ['settings', 'Settings']];

function main() {
  const details = h('div', {}), learned = learning(), own = REDRAW.length;
  const nav = h('nav', {style: 'margin-top:24px'});
  const show = index => {
    const run = RUNS[index];
    REDRAW.length = own; // those of the run before are gone
    details.replaceChildren(...[SEVERAL && advice(run), accounts(run), rewards(run), cost(run), episodes(run), settings(run)].filter(Boolean));
  };
  const chooser = SEVERAL && h('section', {}, h('h2', {}, 'One run in detail'), h('div', {class: 'row', style: 'margin-top:10px'}, RUNS.map(run =>
    h('button', {'aria-pressed': String(run.index === 0), onclick: event => {
      for (const button of event.currentTarget.parentElement.children) button.setAttribute('aria-pressed', String(button === event.currentTarget));
      show(run.index);
    }}, run.name))));
  document.getElementById('page').append(...[
    h('a', {class: 'skip', href: '#episodes'}, 'Skip to the episodes'),
    h('header', {}, h('div', {}, h('div', {class: 'eyebrow'}, 'Troupe · report'), h('h1', {}, SEVERAL ? plural(RUNS.length, 'run') : RUNS[0].name),
      SEVERAL ? null : [h('p', {class: 'lead'}, summary(RUNS[0])), h('p', {class: 'lead'}, status(RUNS[0]))]), RUNS.some(run => run.begun !== null) && renewal(), theme()),
    SEVERAL ? comparison() : [tiles(RUNS[0]), advice(RUNS[0]), loop(RUNS[0])],
    nav,
    learned, ...(chooser ? [chooser] : []), details,
    h('footer', {}, h('p', {class: 'note'},
      RUNS.filter(run => run.drawn_every > 1).map(run => `Of the ${count(run.steps)} steps of ${run.name} every ${run.drawn_every}th is drawn. `),
      DATA.episodes_left_out > 0 && `${plural(DATA.episodes_left_out, 'chosen episode')} did not fit into a page of this size and ${DATA.episodes_left_out === 1 ? 'is' : 'are'} left out. `,
      `Made by report ${DATA.version} from the streams of the run directory; report RUN --csv FILE writes every number.`))].flat().filter(Boolean));
  show(0);
  nav.append(...SECTIONS.filter(([id]) => document.getElementById(id)).map(([id, name]) => h('a', {href: `#${id}`}, name)));
}
main();
// When the page was drawn, for bench/speed/page.sh: milliseconds after it was opened.
requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.drawn = Math.round(performance.now()); }));
