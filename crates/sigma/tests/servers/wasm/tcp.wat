;; A filter of sessions for tests. It holds the client's bytes until there are four or no more, and puts `c:` before them.
;; A session whose first byte is `!` is closed; one that begins with `?` traps, with `~` loops. It puts `n:` before the bytes
;; of the node.
(module
  (import "env" "proxy_get_buffer_bytes" (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_buffer_bytes" (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_close_stream" (func $close (param i32) (result i32)))
  (import "env" "proxy_get_property" (func $get_property (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 1024) "c:n:source\00addressopenclosed")
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_memory_allocate") (param $size i32) (result i32)
    ;; Values are used at once.
    (i32.const 65536))
  (func (export "proxy_on_new_connection") (param i32) (result i32)
    (drop (call $log (i32.const 3) (i32.const 1042) (i32.const 4)))
    (if (call $get_property (i32.const 1028) (i32.const 14) (i32.const 8) (i32.const 12)) (then unreachable))
    (i32.const 0))
  (func (export "proxy_on_downstream_data") (param $id i32) (param $size i32) (param $end i32) (result i32)
    (local $first i32)
    (if (i32.eqz (local.get $size)) (then (return (i32.const 0))))
    (if (call $get_buffer (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8) (i32.const 12)) (then unreachable))
    (local.set $first (i32.load8_u (i32.load (i32.const 8))))
    (if (i32.eq (local.get $first) (i32.const 33)) (then
      (drop (call $close (i32.const 2)))
      (return (i32.const 1))))
    (if (i32.eq (local.get $first) (i32.const 63)) (then unreachable))
    (if (i32.eq (local.get $first) (i32.const 126)) (then (loop $again (br $again))))
    (if (i32.and (i32.lt_u (local.get $size) (i32.const 4)) (i32.eqz (local.get $end))) (then (return (i32.const 1))))
    (drop (call $set_buffer (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 1024) (i32.const 2)))
    (i32.const 0))
  (func (export "proxy_on_upstream_data") (param $id i32) (param $size i32) (param $end i32) (result i32)
    (if (local.get $size) (then
      (drop (call $set_buffer (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 1026) (i32.const 2)))))
    (i32.const 0))
  (func (export "proxy_on_downstream_connection_close") (param $id i32) (param $peer i32)
    (drop (call $log (i32.const 3) (i32.const 1046) (i32.const 6)))))
