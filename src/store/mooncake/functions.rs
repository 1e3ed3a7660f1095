//! The table of functions through which all calls to Mooncake go.

use std::ffi::{c_char, c_int, c_void};

use super::seam::{self, mooncake_replicate_config_t, mooncake_store_t};

/// Declares the table, how it is filled from a library, and from what was linked in.
macro_rules! functions {
    (
        needed { $($field:ident: $symbol:ident($($arg:ty),*) $(-> $ret:ty)?;)* }
        optional { $($opt:ident: $opt_symbol:ident($($opt_arg:ty),*) $(-> $opt_ret:ty)?;)* }
    ) => {
        /// Mooncake's functions, and those extensions that the library has. `seam.h` says what they do.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub $opt: Option<unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>,)*
        }

        impl Functions {
            /// Those that were linked in. In other builds no more than the proof that the types above are those of `seam.h`.
            pub const LINKED: Self = Self {
                $($field: seam::$symbol,)*
                $($opt: Some(seam::$opt_symbol),)*
            };

            /// Looks every symbol up; `Err` is the first that is missing.
            ///
            /// # Safety
            /// What `find` returns for a symbol must be a function of the type that `seam.h` declares under this name.
            pub unsafe fn look_up(
                find: impl Fn(&'static str) -> Option<*mut c_void>,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let address = find(stringify!($symbol)).ok_or(stringify!($symbol))?;
                        // SAFETY: the caller vouches for the type; the address is not null.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(address)
                        }
                    },)*
                    $($opt: find(stringify!($opt_symbol)).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?,
                            >(address)
                        }
                    }),)*
                })
            }
        }
    };
}

functions! {
    needed {
        create: mooncake_store_create() -> mooncake_store_t;
        destroy: mooncake_store_destroy(mooncake_store_t);
        setup: mooncake_store_setup(
            mooncake_store_t, *const c_char, *const c_char, u64, u64, *const c_char, *const c_char, *const c_char
        ) -> c_int;
        register_buffer: mooncake_store_register_buffer(mooncake_store_t, *mut c_void, usize) -> c_int;
        unregister_buffer: mooncake_store_unregister_buffer(mooncake_store_t, *mut c_void) -> c_int;
        batch_is_exist: mooncake_store_batch_is_exist(
            mooncake_store_t, *mut *const c_char, usize, *mut c_int
        ) -> c_int;
        batch_get_into: mooncake_store_batch_get_into(
            mooncake_store_t, *mut *const c_char, *mut *mut c_void, *const usize, usize, *mut i64
        ) -> c_int;
        batch_put_from: mooncake_store_batch_put_from(
            mooncake_store_t, *mut *const c_char, *mut *mut c_void, *const usize, usize,
            *const mooncake_replicate_config_t, *mut c_int
        ) -> c_int;
        remove: mooncake_store_remove(mooncake_store_t, *const c_char, c_int) -> c_int;
    }
    optional {
        setup_dict: moonring_mooncake_setup_dict(
            mooncake_store_t, *mut *const c_char, *mut *const c_char, usize
        ) -> c_int;
        batch_remove: moonring_mooncake_batch_remove(
            mooncake_store_t, *mut *const c_char, usize, c_int, *mut c_int
        ) -> c_int;
        version: moonring_mooncake_version() -> *const c_char;
        last_error: moonring_mooncake_last_error() -> *const c_char;
    }
}

/// Never read in a build without a linked Mooncake, so that nothing has to be there at link time.
#[cfg(not(mooncake_linked))]
const _: Functions = Functions::LINKED;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_missing_symbol_is_named_and_extensions_may_be_missing() {
        let some = Some(functions_end as *mut c_void);
        // SAFETY: nothing is called.
        let looked_up = |without: &'static str| unsafe {
            Functions::look_up(|symbol| {
                if symbol == without || symbol.starts_with("moonring_") {
                    None
                } else {
                    some
                }
            })
        };
        let all = looked_up("").unwrap_or_else(|missing| panic!("{missing}"));
        assert!(all.setup_dict.is_none() && all.batch_remove.is_none());
        for symbol in ["mooncake_store_create", "mooncake_store_remove"] {
            assert_eq!(looked_up(symbol).err(), Some(symbol));
        }
    }

    extern "C" fn functions_end() {}
}
