// The declarations of seam.h. Written by tools/check-bindings --write; do not edit.


pub type mooncake_store_t = *mut ::core::ffi::c_void;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mooncake_replicate_config_t {
    pub replica_num: usize,
    pub with_soft_pin: ::core::ffi::c_int,
    pub with_hard_pin: ::core::ffi::c_int,
    pub preferred_segments: *mut *const ::core::ffi::c_char,
    pub preferred_segments_count: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mooncake_replicate_config_t",
    ][::core::mem::size_of::<mooncake_replicate_config_t>() - 32usize];
    [
        "Alignment of mooncake_replicate_config_t",
    ][::core::mem::align_of::<mooncake_replicate_config_t>() - 8usize];
    [
        "Offset of field: mooncake_replicate_config_t::replica_num",
    ][::core::mem::offset_of!(mooncake_replicate_config_t, replica_num) - 0usize];
    [
        "Offset of field: mooncake_replicate_config_t::with_soft_pin",
    ][::core::mem::offset_of!(mooncake_replicate_config_t, with_soft_pin) - 8usize];
    [
        "Offset of field: mooncake_replicate_config_t::with_hard_pin",
    ][::core::mem::offset_of!(mooncake_replicate_config_t, with_hard_pin) - 12usize];
    [
        "Offset of field: mooncake_replicate_config_t::preferred_segments",
    ][::core::mem::offset_of!(mooncake_replicate_config_t, preferred_segments)
        - 16usize];
    [
        "Offset of field: mooncake_replicate_config_t::preferred_segments_count",
    ][::core::mem::offset_of!(mooncake_replicate_config_t, preferred_segments_count)
        - 24usize];
};
unsafe extern "C" {
    pub fn mooncake_store_create() -> mooncake_store_t;
    pub fn mooncake_store_destroy(store: mooncake_store_t);
    pub fn mooncake_store_setup(
        store: mooncake_store_t,
        local_hostname: *const ::core::ffi::c_char,
        metadata_server: *const ::core::ffi::c_char,
        global_segment_size: u64,
        local_buffer_size: u64,
        protocol: *const ::core::ffi::c_char,
        device_name: *const ::core::ffi::c_char,
        master_server_addr: *const ::core::ffi::c_char,
    ) -> ::core::ffi::c_int;
    pub fn mooncake_store_register_buffer(
        store: mooncake_store_t,
        buffer: *mut ::core::ffi::c_void,
        size: usize,
    ) -> ::core::ffi::c_int;
    pub fn mooncake_store_unregister_buffer(
        store: mooncake_store_t,
        buffer: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
    pub fn mooncake_store_batch_is_exist(
        store: mooncake_store_t,
        keys: *mut *const ::core::ffi::c_char,
        count: usize,
        results: *mut ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn mooncake_store_batch_get_into(
        store: mooncake_store_t,
        keys: *mut *const ::core::ffi::c_char,
        buffers: *mut *mut ::core::ffi::c_void,
        sizes: *const usize,
        count: usize,
        results: *mut i64,
    ) -> ::core::ffi::c_int;
    pub fn mooncake_store_batch_put_from(
        store: mooncake_store_t,
        keys: *mut *const ::core::ffi::c_char,
        buffers: *mut *mut ::core::ffi::c_void,
        sizes: *const usize,
        count: usize,
        config: *const mooncake_replicate_config_t,
        results: *mut ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn mooncake_store_remove(
        store: mooncake_store_t,
        key: *const ::core::ffi::c_char,
        force: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn moonring_mooncake_setup_dict(
        store: mooncake_store_t,
        keys: *mut *const ::core::ffi::c_char,
        values: *mut *const ::core::ffi::c_char,
        count: usize,
    ) -> ::core::ffi::c_int;
    pub fn moonring_mooncake_batch_remove(
        store: mooncake_store_t,
        keys: *mut *const ::core::ffi::c_char,
        count: usize,
        force: ::core::ffi::c_int,
        results: *mut ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn moonring_mooncake_version() -> *const ::core::ffi::c_char;
    pub fn moonring_mooncake_last_error() -> *const ::core::ffi::c_char;
}
