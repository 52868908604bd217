// Weir below a path, behind a reverse proxy that removes the path: every link, form, asset and stream has it.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, request } from 'node:http';
import { after } from 'node:test';

import { api, journey, logIn, post, url } from './browser.mjs';

const BASE = '/weir';
const ATTRIBUTES = ['href', 'action', 'src', 'formaction', 'hx-get', 'hx-post'];

/** Passes what is below the path on. Anything else is a link without the path. */
async function proxy() {
  const strays = [];
  const server = createServer((incoming, outgoing) => {
    if (!incoming.url.startsWith(`${BASE}/`)) {
      strays.push(`${incoming.url} from ${incoming.headers.referer}`);
      outgoing.writeHead(404).end();
      return;
    }
    const { hostname, port } = new URL(url);
    const path = incoming.url.slice(BASE.length);
    const passed = request({ hostname, port, path, method: incoming.method, headers: incoming.headers }, (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.pipe(outgoing);
    });
    outgoing.on('close', () => passed.destroy());
    passed.on('error', () => outgoing.destroy());
    incoming.pipe(passed);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  after(() => {
    server.close();
    server.closeAllConnections();
  });
  return { address: `http://127.0.0.1:${server.address().port}${BASE}`, strays };
}

const { address, strays } = await proxy();

journey('login, live updates, forms and links work below a path', async (visit) => {
  const { id } = await api('POST', '/v1/destinations', {
    url: 'https://example.com/hooks', name: 'Below', event_types: ['below.*'], paused: true,
  });
  const page = await visit.open(`${address}/deliveries?state=pending`, { as: null });
  await logIn(page);
  await page.waitForURL(`${address}/deliveries?state=pending`);
  await page.goto(`${address}/`);
  await post('below.made', 3);
  const row = page.getByRole('row').filter({ hasText: 'Below' });
  await row.getByRole('cell', { name: '3', exact: true }).waitFor();
  await row.getByRole('link', { name: 'Below' }).click();
  await page.waitForURL(`${address}/destinations/${id}`);
  await page.getByLabel('Sends in any second').fill('5');
  await page.locator('#preview').getByText('5/s').first().waitFor();
  await page.getByRole('button', { name: 'Save limits' }).click();
  await page.getByText('Limits saved').waitFor();
  await page.getByRole('button', { name: 'Live' }).waitFor();
});

journey('no page has a link, a form or a file beside the path', async (visit) => {
  const page = await visit.open(`${address}/login`, { as: null });
  await logIn(page);
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  const unread = [`${address}/`];
  const seen = new Set(unread);
  while (unread.length > 0) {
    const from = unread.pop();
    const answer = await page.goto(from);
    assert.ok(answer.status() < 400, `${from}: ${answer.status()}`);
    const targets = await page.evaluate((names) =>
      names.flatMap((name) => [...document.querySelectorAll(`[${name}]`)].map((element) => element.getAttribute(name)))
        .map((target) => new URL(target, location).href.split('#')[0]), ATTRIBUTES);
    for (const target of targets) {
      assert.ok(target.startsWith(`${address}/`), `${from} leads to ${target}`);
      const { pathname } = new URL(target);
      // One of each kind of page is enough, and a file or an action is no page.
      const isPage = !/\/(assets|fragments|docs|openapi|logout|v1)|\/(export|destinations)$|\.(svg|csv)$/.test(pathname);
      const isForm = /\/(pause|limits|preview|secret|rotate|test|verify|delete|bulk|retry|cancel|jump)$/.test(pathname);
      const kind = pathname.replace(/\/(evt|dlv|dst|rpl)_[^/]+/, '/$1');
      if (isPage && !isForm && !seen.has(kind)) {
        seen.add(kind);
        unread.push(target);
      }
    }
  }
  assert.ok(seen.size > 15, [...seen].join(' '));
  assert.deepEqual(strays, []);
});
