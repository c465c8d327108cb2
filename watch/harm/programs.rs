// A Rust program that is right: its threads write to pinned memory beside copies, and it says what it found.
use std::ffi::{c_char, c_int, c_uint, c_void, CString};
use std::ptr;

extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

macro_rules! cuda {
    ($name:literal ($($kind:ty),*) ($($value:expr),*)) => {{
        let function: extern "C" fn($($kind),*) -> c_int = unsafe { std::mem::transmute(entry($name)) };
        let result = function($($value),*);
        assert_eq!(result, 0, $name);
    }};
}

fn entry(name: &str) -> *mut c_void {
    let (library, name) = (CString::new("libcuda.so.1").unwrap(), CString::new(name).unwrap());
    let found = unsafe { dlsym(dlopen(library.as_ptr(), 2), name.as_ptr()) };
    assert!(!found.is_null());
    found
}

fn copies(context: usize, number: u8) -> u64 {
    let (mut page, mut stream, mut memory) = (ptr::null_mut::<u8>(), ptr::null_mut::<c_void>(), 0u64);
    cuda!("cuCtxSetCurrent" (*mut c_void) (context as *mut c_void));
    cuda!("cuMemHostAlloc" (*mut *mut u8, usize, c_uint) (&mut page, 4096, 3));
    cuda!("cuStreamCreate" (*mut *mut c_void, c_uint) (&mut stream, 1));
    cuda!("cuMemAlloc_v2" (*mut u64, usize) (&mut memory, 4096));
    let bytes = unsafe { std::slice::from_raw_parts_mut(page, 4096) };
    let mut sum = 0;
    for round in 0..50u8 {
        bytes[..256].fill(number);
        cuda!("cuMemcpyHtoDAsync_v2" (u64, *mut u8, usize, *mut c_void) (memory, page, 256, stream));
        bytes[1024..].fill(round);
        sum += bytes[1024..].iter().map(|&each| u64::from(each)).sum::<u64>();
        cuda!("cuStreamSynchronize" (*mut c_void) (stream));
    }
    sum
}

fn main() {
    let mut context = ptr::null_mut::<c_void>();
    cuda!("cuInit" (c_uint) (0));
    cuda!("cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int) (&mut context, 0));
    let context = context as usize;
    let threads: Vec<_> = (0..4u8).map(|number| std::thread::spawn(move || copies(context, number))).collect();
    println!("sums {:?}", threads.into_iter().map(|each| each.join().unwrap()).collect::<Vec<_>>());
    std::panic::set_hook(Box::new(|_| {})); // it names the thread by its number
    let failed = std::panic::catch_unwind(|| Vec::<u8>::new()[std::hint::black_box(3)]);
    println!("caught {}", failed.is_err());
}
