// A receiver with express-rate-limit: a fixed window in memory that announces its quota in the headers of the current draft
// and in the older ones. The argument is JSON: {"port": 8080, "limits": [{"path": "/0", "limit": 10, "window_s": 1}]}
const express = require("express");
const { rateLimit } = require("express-rate-limit");

const { port, limits } = JSON.parse(process.argv[2]);
const app = express();
for (const { path, limit, window_s } of limits) {
  // Without the validations, which warn about a limiter for each path.
  const limiter = rateLimit({
    windowMs: window_s * 1000, limit, standardHeaders: "draft-8", legacyHeaders: true, validate: false,
  });
  app.post(path, limiter, (_request, response) => response.send("ok"));
}
app.listen(port, "127.0.0.1");
