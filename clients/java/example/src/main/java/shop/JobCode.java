package shop;

/** One constant for each kind of delayed job. Its name is the code of its handler. */
enum JobCode {
    CLOSE_ORDER
}
