//! Setters of settings and arguments, one per field.

/// Declares `field(value)`, which returns `self` with the field set.
macro_rules! setters {
    ($($field:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

/// As [`setters`], for fields that are an `Option` of the type.
macro_rules! optional_setters {
    ($($field:ident: $type:ty),* $(,)?) => {$(
        #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = Some($field);
            self
        }
    )*};
}
