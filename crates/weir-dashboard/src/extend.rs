//! Methods for the types of `weir-api-types`.

/// Adds methods to a type of `weir-api-types`: a trait and its only implementation.
macro_rules! extend {
    ($(
        $(#[$meta:meta])*
        $visibility:vis trait $name:ident for $answer:ty {
            $($(#[$method_meta:meta])* fn $method:ident(&$self:ident $(, $argument:ident: $kind:ty)*) -> $returned:ty $body:block)*
        }
    )*) => {$(
        $(#[$meta])*
        $visibility trait $name {
            $($(#[$method_meta])* fn $method(&$self $(, $argument: $kind)*) -> $returned;)*
        }

        impl $name for $answer {
            $(fn $method(&$self $(, $argument: $kind)*) -> $returned $body)*
        }
    )*};
}
pub(crate) use extend;
