//! Tests of `ngx.shared`, after the recorded responses of nginx.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Dictionaries;
use crate::engine::dictionaries::dictionary::{Dictionary, Failure, Item, Store, StoreMode};
use crate::snippets::said_on_worker;

/// A dictionary, empty at first.
const DICTIONARY: &str = "local d = ngx.shared['plugin-limit-count'] d:flush_all() d:flush_expired() ";

fn check(cases: &[(&str, &str)]) {
    for (body, expected) in cases {
        let said = said_on_worker(&serde_json::json!({}), &format!("{DICTIONARY}{body}"));
        assert_eq!(said, format!("200 {}", expected.trim_end()), "{body}");
    }
}

#[test]
fn values_have_types_flags_and_times() {
    check(&[
        ("ngx.say(d:set('a', 'x', 0, 7)) ngx.say(d:get('a'))", "truenilfalse\nx7\n"),
        (
            "d:set('a', 1.5) d:set('b', true) d:set('c', false) ngx.say(d:get('a'), d:get('b'), d:get('c'), d:get('d'))",
            "1.5truefalsenil\n",
        ),
        ("d:set('a', 1) ngx.say(d:set('a', nil)) ngx.say(d:get('a'))", "truenilfalse\nnil\n"),
        ("d:set('a', 1) ngx.say(d:delete('a')) ngx.say(d:get('a'))", "truenilfalse\nnil\n"),
        ("ngx.say(d:set('a', {}))", "nilbad value type\n"),
        (
            "ngx.say(d:set('', 1)) ngx.say(d:get(nil)) ngx.say(d:get(('k'):rep(65536)))",
            "nilempty key\nnilnil key\nnilkey too long\n",
        ),
        ("ngx.say(pcall(d.set, d, 'a', 1, -1))", "falsebad \"exptime\" argument\n"),
        ("ngx.say(pcall(d.get, {}, 'a'))", "falsebad \"zone\" argument\n"),
        (
            "d:set('a', 1, 100) ngx.say(d:ttl('a'), d:expire('a', 0), d:ttl('a')) ngx.say(d:ttl('b'))",
            "100true0\nnilnot found\n",
        ),
        ("d:set('a', 1) d:flush_all() ngx.say(d:get('a')) ngx.say(d:get_stale('a'))", "nil\n1niltrue\n"),
        ("d:set(5, 'five') ngx.say(d:get('5'))", "five\n"),
    ]);
}

#[test]
fn ways_to_store_differ() {
    check(&[
        (
            "ngx.say(d:add('a', 1)) ngx.say(d:add('a', 2)) ngx.say(d:get('a'))",
            "truenilfalse\nfalseexistsfalse\n1\n",
        ),
        ("ngx.say(d:replace('a', 1))", "falsenot foundfalse\n"),
        ("ngx.say(d:add('a', nil))", "falseattempt to add or replace nil valuesfalse\n"),
        ("ngx.say(d:safe_add('a', 1), d:safe_set('a', 2), d:get('a'))", "truetrue2\n"),
    ]);
}

#[test]
fn numbers_are_counted() {
    check(&[
        ("ngx.say(d:incr('a', 1))", "nilnot found\n"),
        (
            "ngx.say(d:incr('a', 1, 10)) ngx.say(d:incr('a', 2, 10)) ngx.say(d:incr('a', 0.5))",
            "11nilfalse\n13nilfalse\n13.5\n",
        ),
        ("d:set('a', 'x') ngx.say(d:incr('a', 1))", "nilnot a number\n"),
        ("ngx.say(pcall(d.incr, d, 'a', 'x'))", "falsecannot convert 'nil' to 'double'\n"),
        ("ngx.say(pcall(d.incr, d, 'a', 1, 'y'))", "falsebad init arg: number expected, got string\n"),
        (
            "ngx.say(pcall(d.incr, d, 'a', 1, nil, 5))",
            "falsemust provide \"init\" when providing \"init_ttl\"\n",
        ),
        ("d:incr('a', 1, 0, 50) ngx.say(d:ttl('a'))", "50\n"),
    ]);
}

#[test]
fn lists_have_two_ends() {
    check(&[
        ("ngx.say(d:rpush('l', 'a'), d:rpush('l', 2), d:lpush('l', 'z'), d:llen('l'))", "1233\n"),
        (
            "d:rpush('l', 'a') d:rpush('l', 2) ngx.say(d:lpop('l'), d:rpop('l'), d:rpop('l'), d:llen('l'), d:llen('none'))",
            "a2nil00\n",
        ),
        (
            "d:rpush('l', 'a') ngx.say(d:get('l')) d:set('t', 1) ngx.say(d:lpush('t', 1)) ngx.say(d:llen('t'))",
            "nilvalue is a list\nnilvalue not a list\nnilvalue not a list\n",
        ),
        (
            "ngx.say(d:rpush('l', true)) ngx.say(pcall(d.rpush, d, 'l'))",
            "nilbad value type\nfalseexpecting 3 arguments, but only seen 2\n",
        ),
    ]);
}

#[test]
fn dictionaries_are_listed_and_measured() {
    check(&[
        ("ngx.say(d:capacity(), d:free_space() > 10000000)", "10485760true\n"),
        (
            "d:set('a', 1) d:set('b', 2) d:get('a') local k = d:get_keys() ngx.say(#k, k[1], k[2], #d:get_keys(1), #d:get_keys(0))",
            "2ba12\n",
        ),
        ("d:set('a', 1) d:set('b', 1) d:flush_all() ngx.say(d:flush_expired(1), d:flush_expired())", "11\n"),
        ("ngx.say(tostring(ngx.shared.no_such_dict))", "nil\n"),
        (
            "local v = ('x'):rep(1000000) local forced for i = 1, 14 do local ok, e, f = d:set('k' .. i, v) forced = forced or f end ngx.say(forced, d:get('k1'), d:get('k14') ~= nil)",
            "trueniltrue\n",
        ),
        ("ngx.say(d:safe_set('big', ('y'):rep(11000000)))", "falseno memoryfalse\n"),
        ("local ok, e = pcall(function() ngx.shared.x = 1 end) ngx.say(ok)", "false\n"),
    ]);
}

fn text(length: usize) -> Option<Item> {
    Some(Item::Text(vec![b'x'; length]))
}

const SET: Store = Store { mode: StoreMode::Set, may_evict: true, lifetime: None, flags: 0 };

#[test]
fn the_least_recently_used_go_first() {
    let mut dictionary = Dictionary::new(64 << 10);
    let now = Duration::from_secs(100);
    for index in 0..10 {
        assert!(dictionary.store(format!("k{index}").as_bytes(), text(5000), &SET, now).result.is_ok());
        // One entry stays in use.
        assert!(dictionary.get(b"k0", now, false).unwrap().is_some());
    }
    assert!(dictionary.get(b"k1", now, false).unwrap().is_none());
    assert!(dictionary.get(b"k0", now, false).unwrap().is_some());
    // Entries that expired are not counted as evicted.
    let brief = Store { lifetime: Some(Duration::from_millis(10)), ..SET };
    let mut dictionary = Dictionary::new(64 << 10);
    for index in 0..5 {
        dictionary.store(format!("k{index}").as_bytes(), text(5000), &brief, now);
    }
    let later = now + Duration::from_millis(10);
    for index in 5..10 {
        assert!(!dictionary.store(format!("k{index}").as_bytes(), text(5000), &SET, later).has_evicted);
    }
}

#[test]
fn the_size_is_kept_under_all_operations() {
    let mut dictionary = Dictionary::new(64 << 10);
    let now = Duration::from_secs(100);
    let mut state = 7_u32;
    for _ in 0..20_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let key = format!("key{}", state >> 8 & 63);
        let is_left = state & 1 == 0;
        let _: Result<(), Failure> = match state >> 28 {
            0..6 => dictionary.store(key.as_bytes(), text((state >> 12 & 8191) as usize), &SET, now).result,
            6..8 => dictionary.store(key.as_bytes(), None, &SET, now).result,
            8..12 => dictionary.push(key.as_bytes(), Item::Text(vec![1; 100]), is_left, now).map(|_| ()),
            12..14 => dictionary.pop(key.as_bytes(), is_left, now).map(|_| ()),
            _ => dictionary.incr(key.as_bytes(), 1.0, Some(0.0), None, now).map(|_| ()),
        };
        assert!(dictionary.free_space() <= 64 << 10);
    }
    dictionary.flush_all();
    dictionary.flush_expired(now, 0);
    assert!(dictionary.free_space() > 55 << 10, "nothing is left: {}", dictionary.free_space());
}

#[test]
fn sizes_have_the_units_of_nginx() {
    let configured = |size: &str| Dictionaries::new(&BTreeMap::from([("mine".to_owned(), size.to_owned())]));
    for (size, bytes) in [("12k", 12 << 10), ("1m", 1 << 20), ("20000", 20_000)] {
        let made = configured(size).unwrap();
        assert_eq!(made.0["mine"].lock().unwrap().capacity(), bytes);
    }
    for size in ["", "1", "m", "10g", "2000m", "-1k"] {
        assert!(configured(size).unwrap_err().contains("custom_lua_shared_dict.mine"), "{size}");
    }
}
