;; A module that refuses each configuration.
(module
  (memory (export "memory") 1)
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 0)))
