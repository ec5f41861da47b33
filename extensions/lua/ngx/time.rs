//! The clock of `ngx`.

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mlua::{Function, Lua, Table, Value};
use sigma_plugin::system::{self, System};
use sigma_plugin_kit::utc::Format;

use crate::engine::arguments::{Arguments, nothing, one};
use crate::engine::host::Host;

/// The last second that `http_time` writes: the end of the year 9999.
const LAST_SECOND: f64 = 253_402_300_799.0;

/// The first second of 2038: from there on, cookies have years of four digits.
const SECOND_OF_2038: u64 = 2_145_916_800;

pub(super) fn register(lua: &Lua, host: &Rc<Host>, ngx: &Table) -> mlua::Result<()> {
    host.function(lua, ngx, "time", |host, arguments| one(arguments.lua(), now(host).as_secs()))?;
    host.function(lua, ngx, "now", |host, arguments| {
        // Milliseconds since 1970 are exact in a number of Lua.
        one(arguments.lua(), now(host).as_millis() as f64 / 1000.0)
    })?;
    host.function(lua, ngx, "update_time", |host, _| {
        let _ = host.with(|seat| {
            seat.now = of_machine();
            Ok(())
        });
        nothing()
    })?;
    // `os.date` knows the time zone of the machine.
    let date: Function = lua.globals().get::<Table>("os")?.get("date")?;
    for (name, format) in
        [("today", "%Y-%m-%d"), ("localtime", "%Y-%m-%d %H:%M:%S"), ("utctime", "!%Y-%m-%d %H:%M:%S")]
    {
        let date = date.clone();
        host.function(lua, ngx, name, move |host, arguments| {
            let text: Value = date.call((format, now(host).as_secs())).map_err(|error| error.to_string())?;
            one(arguments.lua(), text)
        })?;
    }
    let Formats { cookie, cookie_late } = Formats::new().map_err(mlua::Error::runtime)?;
    host.function(lua, ngx, "http_time", |_, arguments| {
        second(&arguments)?;
        one(arguments.lua(), http_time(arguments.number(1)?))
    })?;
    host.function(lua, ngx, "cookie_time", move |_, arguments| {
        let second = second(&arguments)?;
        let format = if second < SECOND_OF_2038 { &cookie } else { &cookie_late };
        one(arguments.lua(), format.text(second))
    })?;
    host.function(lua, ngx, "parse_http_time", |_, arguments| {
        let Value::String(text) = arguments.value(1) else {
            return Err("string argument only".to_owned());
        };
        let time = text.to_str().ok().and_then(|text| httpdate::parse_http_date(&text).ok());
        let second = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        one(arguments.lua(), second.map(|second| second.as_secs()))
    })
}

struct Formats {
    cookie: Format,
    cookie_late: Format,
}

impl Formats {
    fn new() -> Result<Formats, String> {
        Ok(Formats {
            cookie: Format::parse("%a, %d-%b-%y %H:%M:%S GMT")?,
            cookie_late: Format::parse("%a, %d-%b-%Y %H:%M:%S GMT")?,
        })
    }
}

/// A second in the format of HTTP, such as `Thu, 01 Jan 1970 00:00:00 GMT`.
pub(crate) fn http_time(second: f64) -> String {
    // Numbers out of range become the nearest second.
    let second = Duration::from_secs(second.clamp(0.0, LAST_SECOND) as u64);
    httpdate::fmt_http_date(UNIX_EPOCH + second)
}

/// A second since 1970; the fraction is cut off.
fn second(arguments: &Arguments<'_>) -> Result<u64, String> {
    match arguments.value(1) {
        // Numbers out of range become the nearest second.
        Value::Integer(_) | Value::Number(_) => Ok(arguments.number(1)?.clamp(0.0, LAST_SECOND) as u64),
        _ => Err("number argument only".to_owned()),
    }
}

/// The cached time of the exchange; in timers the machine's time.
pub(crate) fn now(host: &Host) -> Duration {
    host.with(|seat| Ok(seat.now)).unwrap_or_else(|_| of_machine())
}

fn of_machine() -> Duration {
    let now: SystemTime = system::Host.now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::snippets::check;

    #[test]
    fn times_have_the_formats_of_nginx() {
        check(&[
            ("ngx.say(ngx.http_time(0))", "Thu, 01 Jan 1970 00:00:00 GMT\n"),
            ("ngx.say(ngx.http_time(1700000000.9))", "Tue, 14 Nov 2023 22:13:20 GMT\n"),
            ("ngx.say(ngx.cookie_time(1700000000))", "Tue, 14-Nov-23 22:13:20 GMT\n"),
            ("ngx.say(ngx.cookie_time(0))", "Thu, 01-Jan-70 00:00:00 GMT\n"),
            ("ngx.say(ngx.cookie_time(2200000000))", "Sun, 18-Sep-2039 23:06:40 GMT\n"),
            ("ngx.say(ngx.parse_http_time('Tue, 14 Nov 2023 22:13:20 GMT'))", "1700000000\n"),
            ("ngx.say(ngx.parse_http_time('Tuesday, 14-Nov-23 22:13:20 GMT'))", "1700000000\n"),
            ("ngx.say(ngx.parse_http_time('Tue Nov 14 22:13:20 2023'))", "1700000000\n"),
            ("ngx.say(ngx.parse_http_time('nonsense'))", "nil\n"),
            ("local ok, e = pcall(ngx.http_time, 'x') ngx.say(e)", "number argument only\n"),
        ]);
    }

    #[test]
    fn the_clock_follows_the_machine() {
        check(&[
            (
                "ngx.update_time() ngx.say(math.abs(ngx.time() - os.time()) <= 1, ngx.time() == math.floor(ngx.now()))",
                "truetrue\n",
            ),
            (
                "ngx.say(ngx.today():match('^%d%d%d%d%-%d%d%-%d%d$') ~= nil, #ngx.localtime(), #ngx.utctime())",
                "true1919\n",
            ),
            ("ngx.update_time() ngx.say(ngx.utctime() >= '2026', type(ngx.now()))", "truenumber\n"),
        ]);
    }
}
