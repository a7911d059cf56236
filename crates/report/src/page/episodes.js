// The browser of sampled episodes: the tree of an episode as a map, and turn by turn what each agent could have said.

const selectedEnd = played => played.ended.find(ended => ended.success) || played.ended[0];
const outcome = played => {
  const solved = played.ended.filter(ended => ended.success).length;
  const end = selectedEnd(played);
  if (played.ended.length > 1) return `${solved} of ${played.ended.length} solved`;
  const how = {success: 'solved', terminated: 'ended without success', turns: 'ran out of turns', threshold: 'stopped above its threshold', error: 'could not be scored'};
  return `${how[end.stop] || end.stop} after ${plural(end.turns, 'turn')}${end.reward === null ? '' : `, reward ${short(end.reward)}`}`;
};
// Blue for better than its group, orange for worse, stronger the further from 0.
const shade = advantage => advantage === null || advantage === 0 ? 'var(--idle)'
  : `color-mix(in oklab, var(--${advantage > 0 ? 'good' : 'bad'}) ${Math.round(35 + 65 * Math.min(1, Math.abs(advantage) / 1.5))}%, var(--paper))`;

function episodes(run) {
  const streams = INDEX[run.index]();
  if (streams.length === 0) return null;
  const body = h('div', {class: 'detail', tabindex: -1});
  // The run comes from the page's title: the page does not know the path of its own run.
  const absent = entry => [h('p', {class: 'verdict'}, h('span', {class: `check ${entry.solved ? 'good' : 'bad'}`}, entry.error ? 'could not be scored' : entry.solved ? 'solved' : 'not solved'),
    h('span', {class: 'faint'}, [plural(entry.turns, 'turn'), entry.reward === null ? 'no reward' : `reward ${short(entry.reward)}`, `${entry.flat} of ${plural(entry.groups, 'group')} flat`].join(', '))),
  h('p', {class: 'note'}, 'The page holds the figures of every episode and the candidates of some. This command puts it on the page:'),
  h('pre', {class: 'command'}, `report ${run.name} --show ${entry.name}`)];
  const show = (entry, query) => {
    const found = entry.tree && {...entry.tree, groups: entry.tree.groups.filter(group => query.agents(group.agent) && query.turns(group.turn + 1))};
    body.replaceChildren(h('h3', {class: 'which'}, `${entry.heldOut ? 'held out after step' : 'training, step'} ${entry.step}: episode ${entry.name}`),
      ...(found ? found.groups.length ? episode(found) : [h('p', {class: 'note'}, 'No agent and turn of this episode are searched for.')] : absent(entry)).filter(Boolean));
  };
  const shown = sum(run.episode_sets.map(set => set.episodes.length)), all = sum(streams.map(stream => stream.verdicts.length));
  return section('episodes', 'Episodes',
    h('p', {class: 'note'}, `${plural(all, 'episode')} of ${plural(streams.length, 'stream')}; ● marks the ${count(shown)} that are here with all candidates: some steps, and of each the first solved and the first unsolved episodes. Every one is in the run directory.`),
    list(run, streams, show, body));
}

function episode(played) {
  const anchors = [];
  const groups = played.groups.map(group => {
    const element = candidates(group);
    anchors.push(element);
    return element;
  });
  const turns = distinct(played.groups, 'turn').map(turn => h('div', {class: 'turn'}, h('div', {class: 'turn-name'}, `Turn ${turn + 1}`),
    groups.filter((_, index) => played.groups[index].turn === turn)));
  const joint = played.joint || [];
  return [
    h('p', {class: 'verdict'}, h('span', {class: `check ${selectedEnd(played).success ? 'good' : 'bad'}`}, outcome(played)), h('span', {class: 'mono faint'}, played.task)),
    ...played.errors.map(error => h('p', {class: 'error'}, error)),
    h('div', {class: 'scroll'}, joint.length ? jointMap(played, anchors) : map(played, anchors)),
    joint.length > 0 && h('p', {class: 'note'}, `${plural(joint.length, 'joint action')} at ${plural(new Set(joint.map(nodeOf)).size, 'node')}: a dot is what the agents of a turn did together.`),
    h('div', {class: 'row keys'}, played.groups.some(group => group.members.some(member => member.pieces)) && h('label', {},
      h('input', {type: 'checkbox', checked: document.documentElement.classList.contains('tokens') || null, onchange: event => document.documentElement.classList.toggle('tokens', event.target.checked)}), ' tokens by probability'),
    h('span', {}, h('mark', {}, 'word'), ' not in the candidate that was played'), h('span', {}, h('i', {style: 'background:var(--good)'}), `better than its ${joint.length ? 'node' : 'group'}`), h('span', {}, h('i', {style: 'background:var(--bad)'}), 'worse'),
      h('span', {}, h('i', {style: 'background:var(--idle)'}), 'no difference, or not compared'), h('span', {}, h('i', {class: 'ring'}), 'played')),
    ...turns,
    played.board && h('div', {class: 'turn'}, h('div', {class: 'turn-name'}, 'At the end'), h('pre', {class: 'board'}, played.board)),
  ];
}

// A column for each group, a dot for each candidate, and a line to each candidate from the one that led to its state.
function map(played, anchors) {
  const widest = Math.max(...played.groups.map(group => group.members.length));
  const [gapX, gapY] = [Math.max(84, Math.min(150, 1000 / played.groups.length)), Math.max(7, Math.min(18, 180 / widest))];
  const height = 26 + widest * gapY + 34, width = 30 + gapX * played.groups.length;
  const spots = new Map();
  played.groups.forEach((group, column) => group.members.forEach((member, row) => {
    spots.set(member.id, {x: 34 + column * gapX, y: 20 + (row + 0.5 + (widest - group.members.length) / 2) * gapY});
  }));
  const lines = [], dots = [];
  played.groups.forEach((group, column) => {
    for (const member of group.members) {
      const at = spots.get(member.id);
      const from = spots.get(member.parent) || (column === 0 || group.turn === 0 ? {x: 8, y: 20 + widest * gapY / 2} : null);
      const middle = from && (from.x + at.x) / 2;
      if (from) lines.push([member.selected, s('path', {d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${at.y} ${at.x} ${at.y}`, fill: 'none',
        stroke: member.selected ? 'var(--played)' : 'var(--line)', 'stroke-width': member.selected ? 1.8 : 1.2})]);
      dots.push(s('circle', {cx: at.x, cy: at.y, r: Math.min(6, gapY * 0.42), fill: shade(member.advantage),
        stroke: member.selected ? 'var(--played)' : 'var(--paper)', 'stroke-width': member.selected ? 2 : 1},
      s('title', {}, `${group.agent}, candidate ${member.branch}: ${member.text.trim().slice(0, 80)}`)));
    }
  });
  const labels = played.groups.map((group, column) => s('g', {class: 'label', onclick: () => anchors[column].scrollIntoView({behavior: 'smooth', block: 'start'})},
    s('rect', {x: 34 + (column - 0.5) * gapX, y: 0, width: gapX, height, fill: 'transparent'}),
    s('text', {x: 34 + column * gapX, y: height - 17, 'text-anchor': 'middle'}, group.agent),
    s('text', {x: 34 + column * gapX, y: height - 3, 'text-anchor': 'middle', class: 'faint'}, `turn ${group.turn + 1}`)));
  lines.sort((a, b) => a[0] - b[0]);
  return s('svg', {class: 'map', width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'the tree of the episode'},
    lines.map(([, line]) => line), s('circle', {cx: 8, cy: 20 + widest * gapY / 2, r: 3.5, fill: 'var(--played)'}), dots, labels);
}

// A column for each turn (or stage of one), a dot for each joint action, nodes apart, and a line from the one that led to it.
// Many at one node are a square: under cross, with two agents, a row for each candidate of the first.
const nodeOf = action => `${action.turn} ${action.node ?? ''} ${action.parent ? action.parent.split('.').length : 0}`;
function jointMap(played, anchors) {
  const nodes = new Map();
  for (const action of played.joint) nodes.set(nodeOf(action), [...(nodes.get(nodeOf(action)) || []), action]);
  const depths = new Map(), columns = [];
  for (const actions of nodes.values()) {
    const depth = depths.has(actions[0].parent) ? depths.get(actions[0].parent) + 1 : 0;
    actions.forEach(action => depths.set(action.id, depth));
    (columns[depth] ||= []).push(actions);
  }
  const wide = actions => actions.length > 8 ? Math.ceil(Math.sqrt(actions.length)) : 1;
  const tall = column => sum(column.map(actions => Math.ceil(actions.length / wide(actions)) + 1)) - 1;
  const rows = Math.max(...columns.map(tall));
  const [gapX, gapY] = [Math.max(110, Math.min(240, 900 / columns.length)), Math.max(4, Math.min(18, 420 / rows))];
  const height = 20 + rows * gapY + 30, width = 40 + gapX * columns.length;
  const texts = new Map(played.groups.flatMap(group => group.members.map(member => [member.id, `${group.agent}: ${member.text.trim().slice(0, 60)}`])));
  const spots = new Map(), lines = [], dots = [], start = {x: 8, y: 10 + rows * gapY / 2};
  columns.forEach((column, depth) => {
    let y = 10 + (rows - tall(column)) * gapY / 2;
    for (const actions of column) {
      const rewards = actions.map(action => action.reward ?? 0), mean = sum(rewards) / rewards.length;
      const spread = Math.max(...rewards) - Math.min(...rewards);
      const width = wide(actions), left = 44 + depth * gapX, center = y + Math.ceil(actions.length / width) * gapY / 2;
      actions.forEach((action, index) => {
        const at = {x: left + index % width * gapY, y: y + gapY / 2}, from = spots.get(action.parent) || start, middle = (from.x + left) / 2;
        spots.set(action.id, {x: left + (width - 1) * gapY, y: at.y});
        const to = width > 1 ? {x: left - gapY, y: center} : at;
        if (width === 1 || action.selected || index === 0) lines.push([action.selected, s('path', {d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`, fill: 'none',
          stroke: action.selected ? 'var(--played)' : 'var(--line)', 'stroke-width': action.selected ? 1.8 : 1.2})]);
        dots.push(s('circle', {cx: at.x, cy: at.y, r: Math.min(6, gapY * 0.42), fill: shade(spread > 0 ? 3 * (rewards[index] - mean) / spread : 0),
          stroke: action.selected ? 'var(--played)' : 'var(--paper)', 'stroke-width': action.selected ? 2 : 1, class: 'joint', onclick: () => {
            const place = played.groups.findIndex(group => group.members.some(member => action.members.includes(member.id)));
            const anchor = anchors[place];
            if (anchor?.tagName === 'DETAILS') anchor.open = true;
            anchor?.scrollIntoView({behavior: 'smooth', block: 'start'});
          }}, s('title', {}, [`joint action ${action.id}, reward ${action.reward === null ? 'not scored' : short(action.reward)}${action.terminated ? ', ends' : ''}`,
          ...action.members.map(id => texts.get(id) || id)].join('\n'))));
        if ((index + 1) % width === 0 || index + 1 === actions.length) y += gapY;
      });
      y += gapY;
    }
  });
  const labels = columns.map((column, depth) => s('text', {x: 44 + depth * gapX, y: height - 6, 'text-anchor': 'middle', class: 'faint'}, `turn ${column[0][0].turn + 1}`));
  lines.sort((a, b) => a[0] - b[0]);
  return s('svg', {class: 'map', width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'the joint actions of the episode'},
    lines.map(([, line]) => line), s('circle', {cx: start.x, cy: start.y, r: 3.5, fill: 'var(--played)'}), dots, labels);
}

function candidates(group) {
  const rewards = group.members.map(member => member.reward).filter(reward => reward !== null);
  const spread = Math.max(...rewards) - Math.min(...rewards);
  const scale = Math.max(...rewards.map(Math.abs), 1e-9);
  const flat = group.members.every(member => !member.advantage) ? 'flat: all earned the same' : 'equal rewards, but later ones differ';
  const summary = group.members.length === 1 ? 'one answer' : spread === 0 ? flat : `rewards ${short(Math.min(...rewards))} to ${short(Math.max(...rewards))}`;
  const node = group.node !== undefined && `node ${group.node}`;
  // What is beside the executed path is folded.
  const beside = node && !group.members.some(member => member.selected);
  const head = [group.policy && group.policy !== group.agent && h('span', {class: 'faint'}, `played by ${group.policy}`), node && h('span', {class: 'faint'}, node), h('span', {class: 'faint'}, summary)];
  return h(beside ? 'details' : 'div', {class: beside ? 'group beside' : 'group'},
    beside ? h('summary', {class: 'group-head'}, h('h3', {}, group.agent), ...head) : h('div', {class: 'group-head'}, h('h3', {}, group.agent), ...head),
    group.board && h('pre', {class: 'board'}, group.board),
    h('details', {}, h('summary', {}, 'prompt', h('span', {class: 'preview'}, last(group.prompt)?.content.trim().slice(0, 160) || '')), messages(group.prompt)),
    h('div', {class: 'cards'}, alike(group.members).map(members => card(members, scale, reference(group)))));
}

// Candidates that say the same and earn the same are one card.
const alike = members => [...Map.groupBy(members, member => JSON.stringify([member.text, member.reward, member.advantage, member.cut, member.terminated, member.prompt, member.node, member.parent])).values()];
// What the others are compared with, word by word: what was played, or else the best.
const reference = group => group.members.find(member => member.selected) || [...group.members].sort((a, b) => (b.reward ?? 0) - (a.reward ?? 0))[0];
// The words of a text, those that are not in the other text (longest common subsequence) marked.
function differences(text, other) {
  const [a, b] = [text.split(/(\s+)/), other.split(/(\s+)/)];
  if (text === other || a.length * b.length > 250000) return [text];
  const longest = Array.from({length: a.length + 1}, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--)
    longest[i][j] = a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const out = [];
  for (let i = 0, j = 0; i < a.length; i++) {
    while (j < b.length && a[i] !== b[j] && longest[i][j + 1] > longest[i + 1][j]) j++;
    if (j < b.length && a[i] === b[j]) { out.push(a[i]); j++; } else out.push(/\S/.test(a[i]) ? h('mark', {}, a[i]) : a[i]);
  }
  return out;
}

// The parts of a text that its tokens said, the darker the less likely.
function pieces(member) {
  const [lengths, logprobs] = member.pieces;
  let at = 0;
  return lengths.map((length, place) => {
    const logprob = logprobs[place] / 100, likely = Math.exp(logprob), said = member.text.slice(at, at += length);
    return h('span', {style: `background:color-mix(in oklab, var(--bad) ${Math.round(75 * (1 - likely))}%, transparent)`, title: `p ${short(likely)}, log ${logprob.toFixed(2).replace('-', '−')}`}, said || '·');
  });
}
const messages = prompt => prompt.map(message => h('div', {class: 'message'}, h('div', {class: 'speaker'}, message.role), h('pre', {}, message.content)));

function card(members, scale, compared) {
  const member = members.find(one => one.selected) || members[0];
  const tokens = members.every(one => one.logprob === member.logprob) ? member.logprob : null;
  const parts = Object.entries(member.components);
  const number = (name, value, text) => value !== null && value !== undefined && h('div', {class: 'number'}, h('span', {}, name), h('span', {}, text || short(value)));
  return h('div', {class: `card${member.selected ? ' played' : ''}`},
    h('div', {class: 'edge', style: `background:${shade(member.advantage)}`}),
    h('div', {class: 'card-head'}, h('span', {class: 'faint branches', title: 'candidates'}, members.map(one => one.branch).join(' ')), members.length > 1 && h('b', {}, `× ${members.length}`), member.selected && h('b', {}, 'played'), member.cut && h('span', {class: 'tag'}, 'cut'), member.terminated && h('span', {class: 'tag'}, 'ends')),
    member.prompt && h('details', {}, h('summary', {}, 'its own prompt'), messages(member.prompt)),
    member.pieces && h('pre', {class: `said by-token${member.text.length > 90 ? ' long' : ''}`}, pieces(member)),
    h('pre', {class: `said${member.text.length > 90 ? ' long' : ''}`}, member.text.trim() === '' ? '(nothing)' : differences(member.text.trim(), compared.text.trim())),
    member.info && h('details', {}, h('summary', {}, 'info'), h('pre', {class: 'info'}, JSON.stringify(member.info, null, 1))),
    h('div', {class: 'number main'}, h('span', {}, 'reward'), h('span', {}, member.reward === null ? 'not scored' : short(member.reward))),
    member.reward !== null && h('div', {class: 'bar'}, h('div', {style: `width:${(100 * Math.max(0, member.reward) / scale).toFixed(0)}%`})),
    member.advantage !== null && h('div', {class: 'number main'}, h('span', {}, 'advantage'), h('span', {}, signed(member.advantage))),
    h('div', {class: 'small'}, number('team', member.team), number('local', member.local), parts.map(([name, value]) => number(name, value)),
      number('tokens', member.tokens), number('logprob', tokens, tokens === null ? '' : tokens.toFixed(2).replace('-', '−'))));
}
