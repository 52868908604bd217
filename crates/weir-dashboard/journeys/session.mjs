// Who may see and do what: login, logout, throttled guesses, a key that only reads, a key of one tenant.

import assert from 'node:assert/strict';

import { api, journey, logIn } from './browser.mjs';

journey('a reader logs in, is led back to the page, and logs out', async (visit) => {
  const page = await visit.open('/deliveries?state=dead', { as: null });
  await visit.check(page, 'login');
  await logIn(page);
  await page.getByRole('heading', { name: 'Deliveries', exact: true }).waitFor();
  assert.match(page.url(), /\/deliveries\?state=dead$/);
  await page.getByRole('button', { name: 'Log out' }).click();
  await page.getByLabel('API key').waitFor();
  await page.goto('/');
  await page.getByLabel('API key').waitFor();
});

journey('without JavaScript the login works too', async (visit) => {
  const page = await visit.open('/', { as: null, scripts: false });
  await logIn(page);
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
});

journey('a key with the role read sees no action, and the server refuses it', async (visit) => {
  const { id } = await api('POST', '/v1/destinations', { url: 'https://example.com/read', name: 'Read only' });
  const reader = await api('POST', '/v1/keys', { name: 'reader', role: 'read' });
  const page = await visit.open(`/destinations/${id}`, { as: reader.secret });
  await page.getByText('To change limits, log in with a key that has the role').waitFor();
  for (const name of ['Pause', 'Save limits']) assert.equal(await page.getByRole('button', { name }).count(), 0);
  assert.equal(await page.getByRole('link', { name: 'Keys', exact: true }).count(), 0);
  visit.expect(403, /\/keys$/);
  await page.goto('/keys');
  await page.getByText('this needs a key with the role').waitFor();
  const { origin } = new URL(page.url());
  const answer = await page.request.patch(`/v1/destinations/${id}`, { data: { paused: true }, headers: { origin } });
  assert.equal(answer.status(), 403);
});

journey('a key of one tenant sees only its own', async (visit) => {
  const own = await api('POST', '/v1/destinations', { url: 'https://example.com/own', name: 'Own', tenant: 'acme' });
  const other = await api('POST', '/v1/destinations', { url: 'https://example.com/x', name: 'Other', tenant: 'globex' });
  const bound = await api('POST', '/v1/keys', { name: 'acme', role: 'operate', tenants: ['acme'] });
  const page = await visit.open(`/destinations/${own.id}`, { as: bound.secret });
  await page.getByRole('heading', { name: 'Own' }).waitFor();
  await page.getByRole('link', { name: 'Overview' }).first().click();
  await page.getByRole('link', { name: 'Own' }).waitFor();
  assert.equal(await page.getByRole('link', { name: 'Other' }).count(), 0);
  visit.expect(404, /\/destinations\//);
  await page.goto(`/destinations/${other.id}`);
  await page.getByText('there is no destination').waitFor();
});

// Last: it uses up the tries of this address.
journey('guesses of a key are throttled, and the page says for how long', async (visit) => {
  visit.expect(401, /\/login$/);
  visit.expect(429, /\/login$/);
  const page = await visit.open('/login', { as: null });
  for (let guess = 0; guess < 10; guess += 1) {
    const answered = page.waitForResponse((response) => response.request().method() === 'POST');
    await logIn(page, `wrong-${guess}`);
    assert.equal((await answered).status(), 401);
    await page.getByText('This key is not valid').waitFor();
  }
  await logIn(page, 'wrong');
  await page.getByText(/Too many tries failed\. Try again in \d+ seconds/).waitFor();
  await visit.check(page, 'throttled');
});
