// A receiver on loopback whose answers a journey sets.

import { createServer } from 'node:http';
import { EventEmitter, once } from 'node:events';
import { after } from 'node:test';

/** Starts a receiver, which ends with the file of journeys. A path without an answer of its own is answered 200. */
export async function receive() {
  const answers = new Map();
  const arrivals = [];
  const arrived = new EventEmitter();
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    arrivals.push({ path: request.url, headers: request.headers, body });
    arrived.emit('arrival');
    const { status = 200, headers = {}, text = '' } = answers.get(request.url) ?? {};
    response.writeHead(status, headers).end(text);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  after(() => {
    server.close();
    server.closeAllConnections();
  });
  return {
    url: (path) => `http://127.0.0.1:${server.address().port}${path}`,
    /** Sets the answer of a path: `{status, headers, text}`. */
    answer: (path, answer) => answers.set(path, answer),
    /** Awaits so many arrivals at a path. */
    wait: async (path, count) => {
      while (arrivals.filter((arrival) => arrival.path === path).length < count) await once(arrived, 'arrival');
    },
    arrivals: (path) => arrivals.filter((arrival) => arrival.path === path),
  };
}
