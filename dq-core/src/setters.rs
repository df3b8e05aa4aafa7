//! Macros that declare a setter per field of a type with settings or arguments.

/// Declares `field(value)`, which returns `self` with the field set. A doc comment goes on after
/// "Sets `field`."
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("Sets `", stringify!($field), "`.")]
        $(#[$doc])*
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

/// As [`setters`], for fields that are an `Option` of the type.
macro_rules! optional_setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("Sets `", stringify!($field), "`.")]
        $(#[$doc])*
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = Some($field);
            self
        }
    )*};
}
