// The component: connects the plugin with the functions of the host. The build begins with this file, and tests do not load it.

import * as cluster from "oarlock:host/cluster@1.0.0";
import * as config from "oarlock:host/config@1.0.0";
import * as log from "oarlock:host/log@1.0.0";
import plugin from "../plugin.js";
import { connect } from "./sdk.js";

const shown = (value) => (typeof value === "string" ? value : value instanceof Error ? `${value}` : JSON.stringify(value) ?? `${value}`);
const line = (level) => (...values) => log.write(level, values.map(shown).join(" "), []);
// QuickJS has no console.
globalThis.console ??= { debug: line("debug"), log: line("info"), info: line("info"), warn: line("warn"), error: line("error"), trace: line("debug") };
connect({ cluster, config, log });

export const handler = plugin;
