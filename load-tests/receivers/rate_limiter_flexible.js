// A receiver with rate-limiter-flexible: a window that begins with the first request, and the headers of its documentation.
// The argument is JSON: {"port": 8080, "limits": [{"path": "/0", "limit": 10, "window_s": 1}]}
const http = require("node:http");
const { RateLimiterMemory } = require("rate-limiter-flexible");

const { port, limits } = JSON.parse(process.argv[2]);
const limiters = new Map(
  limits.map(({ path, limit, window_s }) => [path, new RateLimiterMemory({ points: limit, duration: window_s })]),
);

const server = http.createServer(async (request, response) => {
  const limiter = limiters.get(request.url);
  const announce = (result) => {
    response.setHeader("Retry-After", result.msBeforeNext / 1000);
    response.setHeader("X-RateLimit-Limit", limiter.points);
    response.setHeader("X-RateLimit-Remaining", result.remainingPoints);
    response.setHeader("X-RateLimit-Reset", Math.ceil((Date.now() + result.msBeforeNext) / 1000));
  };
  request.resume();
  try {
    announce(await limiter.consume(request.socket.remoteAddress));
    response.end("ok");
  } catch (refusal) {
    announce(refusal);
    response.writeHead(429).end("Too Many Requests");
  }
});
server.listen(port, "127.0.0.1");
