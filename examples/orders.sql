-- Orders and their customers, in SQL alone: customers are a compacted topic, the last value counts.
-- Run in the top directory of a checkout: pip install '.[spark]' && spark-sql -f examples/orders.sql

SET spark.sql.session.timeZone = UTC;

CREATE OR REPLACE TEMPORARY VIEW order_records
  USING segmentlog OPTIONS (path 'examples/data', subscribe 'orders', includeHeaders true);
CREATE OR REPLACE TEMPORARY VIEW customer_records
  USING segmentlog OPTIONS (path 'examples/data', subscribe 'customers');

CREATE OR REPLACE TEMPORARY VIEW orders AS
SELECT timestamp, decoded.*, CAST(headers[0].value AS STRING) AS source
FROM (SELECT *, from_json(CAST(value AS STRING), 'order INT, customer STRING, cents INT') AS decoded
      FROM order_records);

-- The last record of each key; a tombstone removes the customer.
CREATE OR REPLACE TEMPORARY VIEW customers AS
SELECT customer, get_json_object(CAST(value AS STRING), '$.name') AS name
FROM (SELECT CAST(key AS STRING) AS customer, max_by(value, offset) AS value
      FROM customer_records GROUP BY key)
WHERE value IS NOT NULL;

SELECT to_date(timestamp) AS day, source, count(*) AS orders, sum(cents) / 100 AS total
FROM orders GROUP BY ALL ORDER BY ALL;

SELECT name, count(*) AS orders, sum(cents) / 100 AS total
FROM orders JOIN customers USING (customer)
GROUP BY customer, name ORDER BY total DESC, customer LIMIT 5;

SELECT count(*) AS orders_without_a_customer
FROM orders LEFT ANTI JOIN customers USING (customer);
