-- Version 3: which versions of the library may use the tables. Versions 1 and 2 of the tables have
-- only `format`, which programs that know no later version compare with their own. It stays 2, since
-- they can live with all additions since; to keep them out, raise it.

ALTER TABLE {p}meta ADD COLUMN version INTEGER NOT NULL DEFAULT 3;
ALTER TABLE {p}meta ADD COLUMN min_writer INTEGER NOT NULL DEFAULT 2;
ALTER TABLE {p}meta ADD COLUMN min_reader INTEGER NOT NULL DEFAULT 2;

UPDATE {p}meta SET format = 2;
