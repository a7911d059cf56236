// What is wrong with how a page looks: texts that overlap or are cut, charts that are empty or not numbers, a page wider than its window.
(() => {
  const faults = [], note = fault => { if (faults.length < 20) faults.push(fault); };
  const box = element => element.getBoundingClientRect();
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5;
  if (document.documentElement.scrollWidth > innerWidth) note(`the page is ${document.documentElement.scrollWidth} wide in a window of ${innerWidth}`);
  for (const row of document.querySelectorAll('nav, .scroll:has(table.compared)')) {
    if ((row.tagName === 'NAV' || innerWidth < 640) && row.scrollWidth > row.clientWidth) note(`${row.tagName} is cut: ${row.scrollWidth} wide in ${row.clientWidth}`);
  }
  for (const svg of document.querySelectorAll('.plot svg, svg.map')) {
    const name = svg.closest('figure')?.dataset.chart || 'map', frame = box(svg);
    if (/NaN|undefined|Infinity/.test(svg.outerHTML)) note(`${name}: a place that is no number`);
    const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, box(text), text.getAttribute('text-anchor')]);
    for (const [text, at] of texts) {
      if (at.left < frame.left - 0.5 || at.right > frame.right + 0.5 || at.top < frame.top - 0.5 || at.bottom > frame.bottom + 0.5) note(`${name}: "${text}" is cut`);
    }
    texts.forEach(([text, at], place) => texts.slice(place + 1).forEach(([other, its]) => { if (overlap(at, its)) note(`${name}: "${text}" and "${other}" overlap`); }));
    if (svg.closest('.plot')) {
      const labels = texts.filter(([, , anchor]) => anchor === 'end').map(([text]) => text);
      if (labels.length < 2) note(`${name}: ${labels.length} labels on its axis`);
      if (new Set(labels).size < labels.length) note(`${name}: repeated labels: ${labels.join(', ')}`);
      if (![...svg.querySelectorAll('path')].some(path => path.getAttribute('d'))) note(`${name}: nothing is drawn`);
    }
  }
  // Texts of the page within the boxes that would cut them, and beside their neighbors.
  const walker = document.createTreeWalker(document.getElementById('page'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (node.data.trim() === '' || parent.closest('svg, select, .skip, .tip')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (let element = parent; element && element.id !== 'page'; element = element.parentElement) {
      const style = getComputedStyle(element);
      if (style.textOverflow === 'ellipsis' || [style.overflowX, style.overflowY].some(kind => kind === 'auto' || kind === 'scroll')) break;
      if (style.overflowX !== 'hidden' && style.overflowX !== 'clip') continue;
      const frame = box(element);
      for (const at of range.getClientRects()) {
        if (at.width > 0 && (at.left < frame.left - 1 || at.right > frame.right + 1 || at.bottom > frame.bottom + 1)) note(`"${node.data.trim().slice(0, 40)}" is cut by .${element.className}`);
      }
    }
  }
  for (const row of document.querySelectorAll('.tools, .legend, .card-head, .keys, .row, .tile, .settings div, header > *')) {
    const children = [...row.children].filter(child => box(child).width > 0);
    children.forEach((child, place) => children.slice(place + 1).forEach(other => { if (overlap(box(child), box(other))) note(`"${child.textContent.slice(0, 30)}" and "${other.textContent.slice(0, 30)}" overlap`); }));
  }
  return faults;
})()
