-- Pages of deliveries, and leaves of its two indexes over all deliveries, are filled: free space in them costs more than
-- it saves. Measured with 2,000 deliveries a second and no backlog, after a vacuum: a delivery takes 126 instead of 153
-- bytes of the table, 53 instead of 95 of the primary key, and no more write-ahead log (docs/decisions/0076). Neither
-- statement rewrites anything or blocks readers or writers.
ALTER TABLE deliveries SET (fillfactor = 100);
ALTER INDEX deliveries_pkey RESET (fillfactor);
ALTER INDEX deliveries_of_destination RESET (fillfactor);
